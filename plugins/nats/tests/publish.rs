//! `nats.publish` against a real server: what is stored, what is recognised, what each fault does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod server;

use async_nats::jetstream::{self, stream};
use consign_plugin::prelude::*;
use consign_plugin::testing::{self, TestWrite};
use consign_plugin::{Advice, Applied, Scope};
use consign_plugin_nats::config::ConnectionConfig;
use consign_plugin_nats::connection::Nats;
use consign_plugin_nats::sink::Publish;
use futures::StreamExt;
use serde_json::{Value, json};
use server::Server;
use std::time::{Duration, Instant};

fn connection(server: &Server) -> ConnectionConfig {
    let timeouts = json!({ "connect": "2s", "request": "2s" });
    serde_json::from_value(json!({ "servers": [server.url()], "timeouts": timeouts })).unwrap()
}

async fn sink(server: &Server, config: Value) -> Publish {
    let config = serde_json::from_value(config).unwrap();
    testing::open_sink::<Publish>(connection(server), config)
        .await
        .unwrap()
}

async fn client(server: &Server) -> async_nats::Client {
    async_nats::connect(server.url()).await.unwrap()
}

/// A stream on `a.>`, with changes to its settings.
async fn stream(server: &Server, change: impl FnOnce(&mut stream::Config)) -> stream::Stream {
    let mut config = stream::Config {
        name: "A".into(),
        subjects: vec!["a.>".into()],
        ..stream::Config::default()
    };
    change(&mut config);
    jetstream::new(client(server).await)
        .create_stream(config)
        .await
        .unwrap()
}

async fn stored(server: &Server) -> u64 {
    let jetstream = jetstream::new(client(server).await);
    jetstream
        .get_stream("A")
        .await
        .unwrap()
        .cached_info()
        .state
        .messages
}

fn write_of(key: u8, body: impl Into<Vec<u8>>) -> TestWrite {
    TestWrite::new(body).key([key; 16])
}

async fn send(sink: &Publish, writes: impl IntoIterator<Item = TestWrite>) -> Vec<Outcome> {
    testing::write(sink, &testing::batch(writes)).await
}

async fn send_one(sink: &Publish, body: impl Into<Vec<u8>>) -> Outcome {
    send(sink, [write_of(1, body)]).await.remove(0)
}

#[track_caller]
fn is(outcome: &Outcome, applied: Applied, scope: Scope, advice: Advice, code: &str) {
    let found = (
        outcome.applied(),
        outcome.scope(),
        outcome.advice(),
        outcome.code(),
    );
    assert_eq!(found, (applied, scope, advice, code), "{outcome:?}");
}

#[track_caller]
fn refused(outcome: &Outcome, code: &str) {
    is(outcome, Applied::No, Scope::Write, Advice::Never, code);
}

#[track_caller]
fn denied(outcome: &Outcome, code: &str) {
    is(
        outcome,
        Applied::No,
        Scope::Target,
        Advice::NeverAlone,
        code,
    );
}

fn jetstream_on(subject: &str) -> Value {
    json!({ "subject": subject, "jetstream": true })
}

#[tokio::test]
async fn a_write_is_stored_once_with_its_key_and_a_repeat_is_recognised() {
    let Some(server) = Server::start("") else {
        return;
    };
    stream(&server, |_| {}).await;
    let client = client(&server).await;
    let mut listener = client.subscribe("a.one").await.unwrap();
    client.flush().await.unwrap();
    let mut config = jetstream_on("a.one");
    config["headers"] = json!({ "kind": { "$template": 0 } });
    config["forward_headers"] = json!(["trace", "nats-msg-id", "consign.write-key"]);
    let sink = sink(&server, config).await;
    let write = || {
        write_of(1, "body")
            .template(0, "x y")
            .content_type("text/plain")
            .header("Trace", "1")
            .header("Trace", "2")
            .header("Nats-Msg-Id", "theirs")
            .header("consign.write-key", "theirs")
            .header("secret", "3")
    };
    assert_eq!(
        send(&sink, [write(), write_of(2, "").template(0, "")]).await,
        [Outcome::delivered(), Outcome::delivered()]
    );
    assert_eq!(send(&sink, [write()]).await, [Outcome::delivered_repeat()]);
    assert_eq!(stored(&server).await, 2);
    let message = listener.next().await.unwrap();
    assert_eq!(&message.payload[..], b"body");
    let headers = message.headers.unwrap();
    let all = |name: &str| {
        headers
            .get_all(name)
            .map(|v| v.as_str().to_owned())
            .collect::<Vec<_>>()
    };
    let key = "01".repeat(16);
    assert_eq!(all("consign.write-key"), std::slice::from_ref(&key));
    assert_eq!(all("Nats-Msg-Id"), [key]);
    assert_eq!(all("kind"), ["x y"]);
    assert_eq!(all("Content-Type"), ["text/plain"]);
    assert_eq!(all("Trace"), ["1", "2"]);
    assert_eq!(all("secret"), Vec::<String>::new());
}

#[tokio::test]
async fn past_the_window_a_repeat_is_stored_again() {
    let Some(server) = Server::start("") else {
        return;
    };
    stream(&server, |config| {
        config.duplicate_window = Duration::from_secs(1)
    })
    .await;
    let sink = sink(&server, jetstream_on("a.one")).await;
    let found = sink.inspect().await;
    assert_eq!(
        (found.verdict, found.window),
        (Verdict::Verified, Some(Window::DurationMs(1000)))
    );
    assert_eq!(send_one(&sink, "x").await, Outcome::delivered());
    assert_eq!(send_one(&sink, "x").await, Outcome::delivered_repeat());
    assert_eq!(stored(&server).await, 1);
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(send_one(&sink, "x").await, Outcome::delivered());
    assert_eq!(stored(&server).await, 2);
}

#[tokio::test]
async fn inspection_reads_what_the_stream_really_does() {
    let Some(server) = Server::start("") else {
        return;
    };
    let on = sink(&server, jetstream_on("a.one")).await;
    let found = on.inspect().await;
    assert_eq!(found.verdict, Verdict::Contradicted, "{}", found.detail);
    let mut named = jetstream_on("a.one");
    named["stream"] = "A".into();
    let named = sink(&server, named).await;
    assert_eq!(
        named.inspect().await.detail,
        "no stream covers subject `a.one`"
    );
    let templated = json!({ "subject": { "$template": 0 }, "jetstream": true, "stream": "A" });
    let templated = sink(&server, templated).await;
    assert_eq!(templated.inspect().await.detail, "there is no stream `A`");
    stream(&server, |config| {
        config.storage = stream::StorageType::Memory;
        config.max_messages = 10;
        config.no_ack = true;
    })
    .await;
    assert_eq!(templated.inspect().await.verdict, Verdict::Contradicted);
    let mut other = jetstream_on("a.one");
    other["stream"] = "B".into();
    let other = sink(&server, other).await.inspect().await;
    assert_eq!(
        other.detail,
        "subject `a.one` belongs to stream `A`, not to `B`"
    );
    let found = on.inspect().await;
    assert_eq!(found.verdict, Verdict::Contradicted);
    assert_eq!(found.warnings.len(), 2, "{:?}", found.warnings);
    let core = sink(&server, json!({ "subject": "a.one" })).await;
    assert_eq!(core.inspect().await.verdict, Verdict::NotInspected);
    let template = sink(
        &server,
        json!({ "subject": { "$template": 0 }, "jetstream": true }),
    )
    .await;
    assert_eq!(template.inspect().await.verdict, Verdict::NotInspected);
}

#[tokio::test]
async fn a_template_subject_is_inspected_once_a_stream_has_acknowledged() {
    let Some(server) = Server::start("") else {
        return;
    };
    stream(&server, |_| {}).await;
    let sink = sink(
        &server,
        json!({ "subject": { "$template": 0 }, "jetstream": true }),
    )
    .await;
    assert_eq!(sink.inspect().await.verdict, Verdict::NotInspected);
    assert_eq!(
        send(&sink, [write_of(1, "x").template(0, "a.b.c")]).await,
        [Outcome::delivered()]
    );
    let found = sink.inspect().await;
    assert_eq!(
        (found.verdict, found.window),
        (Verdict::Verified, Some(Window::DurationMs(120_000)))
    );
}

#[tokio::test]
async fn core_writes_are_read_by_the_server_and_confirmed_by_nobody() {
    let Some(server) = Server::start("") else {
        return;
    };
    let sink = sink(&server, json!({ "subject": "news" })).await;
    assert_eq!(
        send_one(&sink, "nobody listens").await,
        Outcome::sent_unconfirmed()
    );
    let client = client(&server).await;
    let mut listener = client.subscribe("news").await.unwrap();
    client.flush().await.unwrap();
    let many: Vec<_> = (0..200).map(|i| write_of(i, vec![i; 10_000])).collect();
    assert_eq!(
        send(&sink, many).await,
        vec![Outcome::sent_unconfirmed(); 200]
    );
    for i in 0..200_u8 {
        let message = tokio::time::timeout(Duration::from_secs(5), listener.next())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(message.payload[..], [i; 10_000], "in order");
        let headers = message.headers.unwrap();
        assert_eq!(
            headers.get("consign.write-key").unwrap().as_str(),
            format!("{i:02x}").repeat(16)
        );
        assert!(headers.get("Nats-Msg-Id").is_none());
    }
}

#[tokio::test]
async fn bad_writes_are_refused_by_name_and_their_companions_land() {
    let Some(server) = Server::start("max_payload: 2000") else {
        return;
    };
    stream(&server, |config| config.max_message_size = 1000).await;
    for jetstream in [true, false] {
        let config = json!({
            "subject": { "$template": 0 }, "jetstream": jetstream, "headers": { "h": { "$template": 1 } },
            "forward_headers": ["*"],
        });
        let sink = sink(&server, config).await;
        let good = || write_of(7, "good").template(0, "a.b").template(1, "");
        for subject in [
            "", "a b", "a..b", ".a", "a.", "a.*", "a.>", "a.\n", "a.\u{0}", "a.\u{a0}",
        ] {
            let outcomes = send(
                &sink,
                [
                    good(),
                    write_of(1, "x").template(0, subject).template(1, ""),
                    good(),
                ],
            )
            .await;
            refused(&outcomes[1], "subject");
            assert_ne!(outcomes[0].applied(), Applied::No);
            assert_ne!(outcomes[2].applied(), Applied::No);
        }
        for header in ["a\nb", "a\rb", "Nats\r\n\r\nbody"] {
            refused(
                &send(
                    &sink,
                    [write_of(1, "x").template(0, "a.b").template(1, header)],
                )
                .await[0],
                "header",
            );
        }
        let on = |write: TestWrite| write.template(0, "a.b").template(1, "");
        for write in [
            write_of(1, "x").header("x", vec![0xff]),
            write_of(1, "x").header("x y", "1"),
            write_of(1, "x").header("x", "1\n2"),
        ] {
            refused(&send(&sink, [on(write)]).await[0], "header");
        }
        refused(
            &send(&sink, [on(write_of(1, vec![0; 2000]))]).await[0],
            "max_payload",
        );
        refused(
            &send(&sink, [on(write_of(1, vec![0; 100 << 20]))]).await[0],
            "max_payload",
        );
        refused(
            &send(
                &sink,
                [on(write_of(1, "x").header("long", vec![b'x'; 3000]))],
            )
            .await[0],
            "max_payload",
        );
        refused(
            &send(&sink, [write_of(1, "x").template(0, "a.b")]).await[0],
            "template_missing",
        );
        let after = send(&sink, [good()]).await.remove(0);
        assert_ne!(
            after.applied(),
            Applied::No,
            "the connection survived: {after:?}"
        );
        if jetstream {
            refused(
                &send(&sink, [on(write_of(1, vec![0; 1500]))]).await[0],
                "jetstream_10054",
            );
        }
    }
    // With JetStream the good one once; the core copies, which the stream stores too, each time.
    assert_eq!(stored(&server).await, 1 + 2 * 10 + 1);
}

#[tokio::test]
async fn without_a_stream_a_person_must_act() {
    let Some(server) = Server::start("") else {
        return;
    };
    let sink = sink(&server, jetstream_on("a.one")).await;
    denied(&send_one(&sink, "x").await, "no_stream");
    stream(&server, |_| {}).await;
    assert_eq!(send_one(&sink, "x").await, Outcome::delivered());
    let mut wrong = jetstream_on("a.one");
    wrong["stream"] = "B".into();
    let wrong = self::sink(&server, wrong).await;
    denied(&send_one(&wrong, "x").await, "jetstream_10060");
    // A service that answers instead of a stream is no acknowledgement.
    let client = client(&server).await;
    let mut requests = client.subscribe("service").await.unwrap();
    client.flush().await.unwrap();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            client
                .publish(request.reply.unwrap(), "thanks".into())
                .await
                .unwrap();
        }
    });
    let service = self::sink(&server, jetstream_on("service")).await;
    is(
        &send_one(&service, "x").await,
        Applied::Maybe,
        Scope::Write,
        Advice::Now,
        "not_an_ack",
    );
}

#[tokio::test]
async fn a_full_stream_pauses_the_lane_and_a_sealed_one_halts_it() {
    let Some(server) = Server::start("") else {
        return;
    };
    let stream = stream(&server, |config| {
        config.max_messages = 1;
        config.discard = stream::DiscardPolicy::New;
    })
    .await;
    let sink = sink(&server, jetstream_on("a.one")).await;
    let outcomes = send(&sink, [write_of(1, "x"), write_of(2, "y")]).await;
    assert_eq!(outcomes[0], Outcome::delivered());
    is(
        &outcomes[1],
        Applied::No,
        Scope::Target,
        Advice::After,
        "jetstream_10077",
    );
    stream.purge().await.unwrap();
    assert_eq!(
        send(&sink, [write_of(2, "y")]).await,
        [Outcome::delivered()]
    );
    let mut sealed = stream.cached_info().config.clone();
    sealed.sealed = true;
    jetstream::new(client(&server).await)
        .update_stream(sealed)
        .await
        .unwrap();
    let outcome = send(&sink, [write_of(3, "z")]).await.remove(0);
    denied(&outcome, "jetstream_10109");
}

const USERS: &str = r#"
authorization { users: [
  { user: full, password: secret }
  { user: narrow, password: secret, permissions: { publish: ["a.ok", "$JS.API.>"], subscribe: ["_INBOX.>"] } }
  { user: deaf, password: secret, permissions: { publish: ["a.>"], subscribe: ["x"] } }
] }"#;

fn as_user(server: &Server, user: &str, password: &str) -> ConnectionConfig {
    let mut config = serde_json::to_value(connection(server)).unwrap();
    config["auth"] = json!({ "username": user, "password": password });
    serde_json::from_value(config).unwrap()
}

#[tokio::test]
async fn missing_permissions_are_denied_at_once_and_not_a_timeout() {
    let Some(server) = Server::start(USERS) else {
        return;
    };
    let failure = testing::connect::<Nats>(connection(&server))
        .await
        .err()
        .unwrap();
    assert_eq!(
        (failure.kind, failure.code.as_str()),
        (FailureKind::Denied, "not_authorized")
    );
    let failure = testing::connect::<Nats>(as_user(&server, "full", "wrong-password"))
        .await
        .err()
        .unwrap();
    assert_eq!(failure.kind, FailureKind::Denied);
    assert!(!failure.message.contains("wrong-password"), "{failure}");
    let failure = testing::connect::<Nats>(as_user(&server, "deaf", "secret"))
        .await
        .err()
        .unwrap();
    assert_eq!(
        (failure.kind, failure.code.as_str()),
        (FailureKind::Denied, "no_inbox")
    );
    let owner = testing::connect::<Nats>(as_user(&server, "full", "secret"))
        .await
        .unwrap();
    owner.probe().await.unwrap();
    let options =
        async_nats::ConnectOptions::with_user_and_password("full".into(), "secret".into());
    let client = options.connect(server.url()).await.unwrap();
    jetstream::new(client)
        .create_stream(stream::Config {
            name: "A".into(),
            subjects: vec!["a.>".into()],
            ..Default::default()
        })
        .await
        .unwrap();
    for jetstream in [true, false] {
        let config = json!({ "subject": { "$template": 0 }, "jetstream": jetstream });
        let sink = testing::open_sink::<Publish>(
            as_user(&server, "narrow", "secret"),
            serde_json::from_value(config).unwrap(),
        )
        .await
        .unwrap();
        let start = Instant::now();
        let outcomes = send(
            &sink,
            [
                write_of(1, "x").template(0, "a.ok"),
                write_of(2, "y").template(0, "a.not"),
            ],
        )
        .await;
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{:?}",
            start.elapsed()
        );
        assert_ne!(outcomes[0].applied(), Applied::No, "{outcomes:?}");
        denied(&outcomes[1], "not_permitted");
    }
}

#[tokio::test]
async fn a_server_that_is_killed_under_publish_loses_nothing_and_copies_nothing() {
    let Some(mut server) = Server::start("") else {
        return;
    };
    stream(&server, |_| {}).await;
    let sink = Arc::new(sink(&server, jetstream_on("a.one")).await);
    let mut open: Vec<u16> = (0..400).collect();
    let (mut rounds, mut failed, mut repeats) = (0, 0, 0);
    while !open.is_empty() {
        assert!(rounds < 500, "{} writes never landed", open.len());
        let writes: Vec<_> = open
            .iter()
            .map(|number| {
                TestWrite::new(number.to_string())
                    .key([number.to_be_bytes(); 8].concat().try_into().unwrap())
            })
            .collect();
        let sending = tokio::spawn({
            let sink = Arc::clone(&sink);
            async move { send(&sink, writes).await }
        });
        if rounds < 6 {
            tokio::time::sleep(Duration::from_micros(700 * (rounds + 1))).await;
            server.kill();
        }
        let outcomes = sending.await.unwrap();
        for outcome in outcomes
            .iter()
            .filter(|outcome| outcome.applied() != Applied::Yes)
        {
            assert_eq!(outcome.scope(), Scope::Connection, "{outcome:?}");
            failed += 1;
        }
        repeats += outcomes
            .iter()
            .filter(|outcome| outcome.is_repeat())
            .count();
        open = open
            .into_iter()
            .zip(outcomes)
            .filter(|(_, o)| o.applied() != Applied::Yes)
            .map(|(n, _)| n)
            .collect();
        if rounds < 6 {
            server.restart();
        } else {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        rounds += 1;
    }
    assert!(failed > 0, "no kill hit a publish");
    assert_eq!(
        stored(&server).await,
        400,
        "{rounds} rounds, {failed} failed, {repeats} repeats"
    );
}

#[tokio::test]
async fn a_connection_that_breaks_answers_at_once_and_sends_nothing_later() {
    let Some(mut server) = Server::start("") else {
        return;
    };
    let sink = sink(&server, json!({ "subject": "news" })).await;
    server.signal("STOP");
    let batch = testing::batch((0..50).map(|i| write_of(i, "x")));
    let (outcomes, ()) = tokio::join!(testing::write(&sink, &batch), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.kill();
    });
    for outcome in outcomes {
        is(
            &outcome,
            Applied::Maybe,
            Scope::Connection,
            Advice::Now,
            "connection_lost",
        );
    }
    is(
        &send_one(&sink, "x").await,
        Applied::No,
        Scope::Connection,
        Advice::Now,
        "connect",
    );
    server.restart();
    let client = client(&server).await;
    let mut listener = client.subscribe(">").await.unwrap();
    client.flush().await.unwrap();
    tokio::time::sleep(REDIAL).await;
    assert_eq!(send_one(&sink, "after").await, Outcome::sent_unconfirmed());
    let message = loop {
        let message = tokio::time::timeout(Duration::from_secs(5), listener.next())
            .await
            .unwrap()
            .unwrap();
        if !message.subject.starts_with("_INBOX") {
            break message;
        }
    };
    assert_eq!(
        &message.payload[..],
        b"after",
        "nothing that was given up arrives"
    );
}

const REDIAL: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_frozen_server_is_unknown_at_the_deadline_and_dialled_again_by_the_probe() {
    let Some(server) = Server::start("") else {
        return;
    };
    stream(&server, |_| {}).await;
    let nats = testing::connect::<Nats>(connection(&server)).await.unwrap();
    let config = serde_json::from_value(jetstream_on("a.one")).unwrap();
    let sink = Publish::open(Arc::clone(&nats), config, &testing::context())
        .await
        .unwrap();
    assert_eq!(send_one(&sink, "x").await, Outcome::delivered());
    server.signal("STOP");
    let batch = testing::batch([write_of(2, "y")]);
    let start = Instant::now();
    let outcomes = testing::write_within(&sink, &batch, Duration::from_secs(1)).await;
    is(
        &outcomes[0],
        Applied::Maybe,
        Scope::Connection,
        Advice::Now,
        "timeout",
    );
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(nats.probe().await.unwrap_err().kind, FailureKind::Down);
    server.signal("CONT");
    tokio::time::sleep(REDIAL).await;
    nats.probe().await.unwrap();
    // The frozen server read the first attempt before it froze or after: the key tells.
    let outcome = send(&sink, [write_of(2, "y")]).await.remove(0);
    assert_eq!(outcome.applied(), Applied::Yes);
    assert_eq!(stored(&server).await, 2);
}

#[test]
fn the_declaration_is_coherent_and_resolves_by_configuration() {
    assert_eq!(
        consign_manifest::coherence::sink(&Publish::declaration()),
        Vec::<String>::new()
    );
    let nats: ConnectionConfig =
        serde_json::from_value(json!({ "servers": ["nats://h:4222"] })).unwrap();
    let resolve = |config: Value| Publish::resolve(&nats, &serde_json::from_value(config).unwrap());
    let best = resolve(json!({ "subject": "a.{{ .body.x }}", "jetstream": true }));
    assert_eq!(
        (best.promise, best.repeat, best.unconfirmed),
        (Promise::EffectivelyOnce, RepeatKind::WriteKey, false)
    );
    assert_eq!(best.target_id, "a.{{ .body.x }}");
    let core = resolve(json!({ "subject": "a" }));
    assert_eq!(
        (core.promise, core.repeat, core.unconfirmed),
        (Promise::AtLeastOnce, RepeatKind::SecondCopy, true)
    );
    let own =
        resolve(json!({ "subject": "a", "jetstream": true, "headers": { "nats-msg-id": "x" } }));
    assert_eq!(
        (own.promise, own.repeat, own.unconfirmed),
        (Promise::AtLeastOnce, RepeatKind::SecondCopy, false)
    );
    for (config, part) in [
        (json!({ "subject": "a.*" }), "`subject`"),
        (json!({ "subject": "a", "stream": "A" }), "`stream`"),
        (
            json!({ "subject": "a", "headers": { "a b": "x" } }),
            "`headers`",
        ),
        (
            json!({ "subject": "a", "headers": { "a": "x\ny" } }),
            "`headers.a`",
        ),
    ] {
        let faults = resolve(config).faults;
        assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
    }
    for (config, part) in [
        (json!({ "servers": [] }), "`servers`"),
        (json!({ "servers": ["nats://me:pw@h"] }), "`servers`"),
        (
            json!({ "servers": ["h"], "token": "x", "nkey_seed": "y" }),
            "at most one",
        ),
        (
            json!({ "servers": ["h"], "tls": { "server_name": "x" } }),
            "`tls.server_name`",
        ),
        (
            json!({ "servers": ["h"], "tls": { "cert_file": "x" } }),
            "belong together",
        ),
        (
            json!({ "servers": ["h"], "ping_interval": "10ms" }),
            "`ping_interval`",
        ),
        (
            json!({ "servers": ["h"], "inbox_prefix": "a.>" }),
            "`inbox_prefix`",
        ),
    ] {
        let config: ConnectionConfig = serde_json::from_value(config).unwrap();
        let faults = config.faults();
        assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
    }
}
