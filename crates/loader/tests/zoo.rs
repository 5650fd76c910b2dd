//! The plugin zoo, alive: whatever a plugin does, the host gets exactly one answer per write, an
//! honest one, and lives.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "test code"
)]

mod common;

use common::{library, raw};
use consign_loader::{
    Advice, Answer, AnswerEnd, Applied, BatchBuilder, Connection, FailureKind, FunctionAnswer,
    FunctionHandle, FunctionMessage, LoadOptions, Manifest, Names, OpenConnection, OpenFunction,
    Plugins, ResolveRequest, ResolvedOperation, Scope, SinkHandle, TEXT_MAX_BYTES, WriteBatch,
    WriteParts,
};
use consign_manifest::PluginKind;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);

fn zoo() -> Plugins {
    static ZOO: OnceLock<Plugins> = OnceLock::new();
    ZOO.get_or_init(|| {
        Plugins::load(&LoadOptions {
            folders: vec![library("zoo"), library("zoo_raw")],
            ..LoadOptions::default()
        })
        .unwrap()
    })
    .clone()
}

fn names() -> Names {
    Names {
        connection: "cage".into(),
        adapter: Some("feeding".into()),
        send: Some("meat".into()),
        ..Names::default()
    }
}

async fn connect(connector: &str, config: Value) -> Result<Connection, consign_loader::Failure> {
    let request = OpenConnection {
        connector: connector.to_owned(),
        config,
        names: names(),
    };
    zoo().open_connection(request, SOON).await
}

async fn sink(config: Value) -> (Connection, SinkHandle) {
    let connection = connect("zoo", json!({})).await.unwrap();
    let sink = connection
        .open_sink("zoo.write", config, names(), SOON)
        .await
        .unwrap();
    (connection, sink)
}

async fn raw_sink(config: Value) -> (Connection, SinkHandle) {
    let connection = connect("zoo_raw", json!({})).await.unwrap();
    let sink = connection
        .open_sink("zoo_raw.write", config, names(), SOON)
        .await
        .unwrap();
    (connection, sink)
}

fn batch(bodies: &[&str]) -> WriteBatch {
    let mut batch = BatchBuilder::with_capacity(bodies.len(), 64);
    for (i, body) in bodies.iter().enumerate() {
        let write = WriteParts {
            key: [u8::try_from(i).unwrap(); 16],
            body: body.as_bytes(),
            ..WriteParts::default()
        };
        batch
            .push(&write, [("h", b"v".as_slice())], [(0, "label")])
            .unwrap();
    }
    batch.finish()
}

fn codes(answer: &Answer) -> Vec<(Applied, &str)> {
    answer
        .outcomes
        .iter()
        .map(|o| (o.applied, o.code.as_str()))
        .collect()
}

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_well_behaved_batch_arrives_with_keys_bodies_and_rendered_text() {
    let folder = tempfile::tempdir().unwrap();
    let effects = folder.path().join("effects");
    let config = json!({ "effects": effects, "label": { "$template": 0 } });
    let (connection, sink) = sink(config).await;
    let answer = sink.submit(batch(&["a", "b"]), SOON).await;
    assert_eq!(answer.end, AnswerEnd::Answered);
    assert_eq!(codes(&answer), [(Applied::Yes, ""), (Applied::Yes, "")]);
    assert_eq!(
        lines(&effects),
        [
            format!("{} a label", "00".repeat(16)),
            format!("{} b label", "01".repeat(16))
        ]
    );
    connection.probe(SOON).await.unwrap();
    let inspection = sink.inspect(SOON).await.unwrap();
    assert!(inspection.detail.contains("nothing to inspect"));
    sink.close(SOON).await.unwrap();
    connection.close(SOON).await.unwrap();
    let answer = sink.submit(batch(&["c"]), SOON).await;
    assert_eq!(answer.end, AnswerEnd::Failed);
    assert_eq!(codes(&answer), [(Applied::No, "sink_closed")]);
    assert_eq!(
        lines(&effects).len(),
        2,
        "what was never sent is never applied"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_carried_out_concurrently() {
    let (_connection, sink) = sink(json!({ "act": { "step": { "slow": 300 } } })).await;
    let start = Instant::now();
    let replies: Vec<_> = (0..8).map(|_| sink.submit(batch(&["a"]), SOON)).collect();
    for reply in replies {
        assert_eq!(reply.await.end, AnswerEnd::Answered);
    }
    assert!(
        start.elapsed() < Duration::from_millis(1500),
        "not one after the other"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_shorthand_keeps_its_three_axes_across_the_boundary() {
    for (act, applied, scope, advice, after) in [
        (json!("refuse"), Applied::No, Scope::Write, Advice::Never, 0),
        (
            json!("denied"),
            Applied::No,
            Scope::Target,
            Advice::NeverAlone,
            0,
        ),
        (
            json!("down"),
            Applied::No,
            Scope::Connection,
            Advice::Now,
            0,
        ),
        (
            json!({ "throttle": 1500 }),
            Applied::No,
            Scope::Target,
            Advice::After,
            1500,
        ),
        (
            json!("unknown"),
            Applied::Maybe,
            Scope::Connection,
            Advice::Now,
            0,
        ),
        (
            json!("failed_maybe"),
            Applied::Maybe,
            Scope::Write,
            Advice::Now,
            0,
        ),
    ] {
        let (_connection, sink) = sink(json!({ "act": act })).await;
        let answer = sink.submit(batch(&["a"]), SOON).await;
        let o = &answer.outcomes[0];
        assert_eq!(
            (o.applied, o.scope, o.advice, o.after_ms),
            (applied, scope, advice, after)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_connect_is_a_failure_and_the_next_connect_works() {
    let failure = connect("zoo", json!({ "connect": "panic" }))
        .await
        .unwrap_err();
    assert!(failure.panicked && failure.message.contains("an animal has escaped"));
    connect("zoo", json!({})).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_probe_faults_the_connection() {
    let connection = connect("zoo", json!({ "probe": "panic" })).await.unwrap();
    let failure = connection.probe(SOON).await.unwrap_err();
    assert!(failure.panicked);
    let fault = tokio::time::timeout(SOON, connection.faulted())
        .await
        .unwrap();
    assert!(fault.message.contains("an animal has escaped"), "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_write_leaves_its_batch_unknown_and_the_others_alone() {
    let (connection, sink) = sink(json!({ "act": { "step": "panic" }, "on": "bad" })).await;
    let bad = sink.submit(batch(&["bad", "x"]), SOON);
    let good = sink.submit(batch(&["good"]), SOON);
    let bad = bad.await;
    assert_eq!(bad.end, AnswerEnd::Panicked);
    assert_eq!(
        codes(&bad),
        [
            (Applied::Maybe, "plugin_panicked"),
            (Applied::Maybe, "plugin_panicked")
        ]
    );
    assert_eq!(codes(&good.await), [(Applied::Yes, "")]);
    let fault = tokio::time::timeout(SOON, connection.faulted())
        .await
        .unwrap();
    assert!(fault.panicked);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_open_is_a_failure() {
    let connection = connect("zoo", json!({})).await.unwrap();
    let opened = connection.open_sink("zoo.write", json!({ "open": "panic" }), names(), SOON);
    assert!(opened.await.unwrap_err().panicked);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_drop_is_contained_at_close_and_at_cancel() {
    let connection = connect("zoo", json!({ "drop_panics": true }))
        .await
        .unwrap();
    let failure = connection.close(SOON).await.unwrap_err();
    assert!(failure.panicked, "{failure}");

    let (_connection, sink) = sink(json!({ "act": "drop_panics" })).await;
    let reply = sink.submit(batch(&["a"]), SOON);
    reply.cancel();
    let answer = reply.await;
    assert_eq!(answer.end, AnswerEnd::Panicked);
    assert_eq!(codes(&answer), [(Applied::Maybe, "plugin_panicked")]);
    connect("zoo", json!({})).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panicking_waker_is_contained() {
    let (_connection, sink) = sink(json!({ "act": "waker_panics" })).await;
    let answer = sink.submit(batch(&["a"]), SOON).await;
    assert_eq!(answer.end, AnswerEnd::Panicked);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_resolve_is_a_failure() {
    let request = ResolveRequest {
        operation: "zoo.write".into(),
        connection: json!({}),
        function: json!({ "act": { "step": "panic" } }),
    };
    let failure = zoo().resolve(&request).unwrap_err();
    assert_eq!(failure.code, "plugin_panicked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_connect_ends_at_its_deadline() {
    let request = OpenConnection {
        connector: "zoo".into(),
        config: json!({ "connect": "hang" }),
        names: names(),
    };
    let start = Instant::now();
    let opened = zoo()
        .open_connection(request, Duration::from_millis(200))
        .await;
    let failure = opened.unwrap_err();
    assert_eq!(
        (failure.kind, failure.code.as_str()),
        (FailureKind::Down, "deadline")
    );
    assert!(!failure.hung && start.elapsed() < Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_write_is_aborted_at_its_deadline_and_by_a_cancel() {
    let (_connection, sink) = sink(json!({ "act": { "step": "hang" } })).await;
    let at_deadline = sink.submit(batch(&["a"]), Duration::from_millis(200)).await;
    assert_eq!(at_deadline.end, AnswerEnd::Aborted);
    assert_eq!(codes(&at_deadline), [(Applied::Maybe, "aborted")]);
    let reply = sink.submit(batch(&["a"]), SOON);
    let canceller = reply.canceller();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        canceller.cancel();
        canceller.cancel();
    });
    assert_eq!(reply.await.end, AnswerEnd::Aborted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_a_sink_aborts_what_is_in_flight() {
    let (_connection, sink) = sink(json!({ "act": { "step": "hang" } })).await;
    let reply = sink.submit(batch(&["a"]), SOON);
    sink.close(SOON).await.unwrap();
    assert_eq!(reply.await.end, AnswerEnd::Aborted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_is_deaf_to_cancels_is_fenced_and_its_late_answer_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let effects = folder.path().join("effects");
    let config = json!({ "effects": effects, "act": { "step": { "block": 800 } } });
    let (connection, sink) = sink(config).await;
    let before = zoo().counts().late;
    let reply = sink.submit(batch(&["a"]), Duration::from_millis(50));
    reply.cancel();
    let mut reply = Box::pin(reply);
    let still_there = tokio::time::timeout(Duration::from_millis(300), &mut reply).await;
    assert!(
        still_there.is_err(),
        "no abort is acknowledged while it runs"
    );
    connection.fence();
    let answer = reply.await;
    assert_eq!(answer.end, AnswerEnd::Fenced);
    assert_eq!(codes(&answer), [(Applied::Maybe, "fenced")]);
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(
        lines(&effects).len(),
        1,
        "it applied after all: the answer was honest"
    );
    assert!(
        zoo().counts().late > before,
        "and its late answer was counted"
    );
    assert_eq!(
        sink.submit(batch(&["b"]), SOON).await.end,
        AnswerEnd::Failed
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_applies_behind_its_own_back_is_answered_maybe() {
    let folder = tempfile::tempdir().unwrap();
    let effects = folder.path().join("effects");
    let config = json!({ "effects": effects, "act": { "late_after_cancel": 300 } });
    let (_connection, sink) = sink(config).await;
    let reply = sink.submit(batch(&["a"]), SOON);
    reply.cancel();
    let answer = reply.await;
    assert_eq!(codes(&answer), [(Applied::Maybe, "aborted")]);
    assert!(lines(&effects).is_empty());
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(lines(&effects).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_is_acknowledged_only_when_blocking_work_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let effects = folder.path().join("effects");
    let config = json!({ "effects": effects, "act": { "blocking": 400 } });
    let (_connection, sink) = sink(config).await;
    let reply = sink.submit(batch(&["a"]), SOON);
    reply.cancel();
    let answer = reply.await;
    assert_eq!(answer.end, AnswerEnd::Aborted);
    assert_eq!(
        lines(&effects).len(),
        1,
        "what applied did so before the acknowledgement"
    );
    let answer = sink.submit(batch(&["b"]), SOON).await;
    assert_eq!(codes(&answer), [(Applied::Yes, "")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_last_handle_of_a_sink_aborts_what_is_in_flight() {
    let (_connection, sink) = sink(json!({ "act": { "step": "hang" } })).await;
    let reply = sink.submit(batch(&["a"]), SOON);
    drop(sink);
    assert_eq!(reply.await.end, AnswerEnd::Aborted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_reply_cancels_its_batch() {
    let folder = tempfile::tempdir().unwrap();
    let effects = folder.path().join("effects");
    let config = json!({ "effects": effects, "act": { "step": { "slow": 300 } } });
    let (_connection, sink) = sink(config).await;
    drop(sink.submit(batch(&["a"]), SOON));
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(lines(&effects).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_leaks_threads_still_closes() {
    let connection = connect("zoo", json!({ "leaks_threads": 5 })).await.unwrap();
    connection.close(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_a_task_beside_the_connection_faults_it() {
    let connection = connect("zoo", json!({ "task_panics_after_ms": 50 }))
        .await
        .unwrap();
    let fault = tokio::time::timeout(SOON, connection.faulted())
        .await
        .unwrap();
    assert!(
        fault.panicked && fault.message.contains("a task has escaped"),
        "{fault}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_that_hangs_ends_at_its_deadline() {
    let connection = connect("zoo", json!({ "close": "hang" })).await.unwrap();
    let failure = connection
        .close(Duration::from_millis(200))
        .await
        .unwrap_err();
    assert_eq!(failure.code, "deadline");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_never_answered_is_reported_as_hung() {
    let connection = connect("zoo", json!({ "probe": { "block": 5000 } }))
        .await
        .unwrap();
    let failure = connection
        .probe(Duration::from_millis(100))
        .await
        .unwrap_err();
    assert!(failure.hung, "{failure}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcomes_that_are_missing_or_too_many_leave_one_honest_outcome_per_write() {
    let maybe = (Applied::Maybe, "sdk_outcome_count");
    let yes = (Applied::Yes, "");
    for (act, expected) in [
        ("none", [maybe, maybe]),
        ("too_few", [yes, maybe]),
        ("too_many", [yes, yes]),
        ("out_of_range", [maybe, maybe]),
        ("all_for_one", [yes, maybe]),
        (
            "unknown_codes",
            [(Applied::Maybe, ""), (Applied::Maybe, "")],
        ),
    ] {
        let before = zoo().counts().garbage;
        let (_connection, sink) = raw_sink(json!({ "act": act })).await;
        let answer = sink.submit(batch(&["a", "b"]), SOON).await;
        assert_eq!(codes(&answer), expected, "{act}");
        if act != "unknown_codes" {
            assert!(zoo().counts().garbage > before, "{act} is counted");
        }
    }
    for (act, expected) in [("too_few", [yes, maybe]), ("too_many", [yes, yes])] {
        let (_connection, sink) = sink(json!({ "act": act })).await;
        let answer = sink.submit(batch(&["a", "b"]), SOON).await;
        assert_eq!(codes(&answer), expected, "{act} through the SDK");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_make_no_sense_leave_the_batch_unknown() {
    for act in ["whole_batch", "unknown_status"] {
        let (_connection, sink) = raw_sink(json!({ "act": act })).await;
        let answer = sink.submit(batch(&["a"]), SOON).await;
        assert_eq!(codes(&answer), [(Applied::Maybe, "sdk_bad_reply")], "{act}");
    }
    let failure = connect("zoo_raw", json!({ "act": "failure_not_json" }))
        .await
        .unwrap_err();
    assert_eq!(failure.code, "bad_reply");
    let failure = connect("zoo_raw", json!({ "act": "unknown_status" }))
        .await
        .unwrap_err();
    assert_eq!(
        (failure.kind, failure.code.as_str()),
        (FailureKind::Other, "from_the_future")
    );
    let (_connection, sink) = raw_sink(json!({})).await;
    assert_eq!(sink.inspect(SOON).await.unwrap_err().code, "bad_reply");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn double_foreign_and_late_completions_are_counted_and_change_nothing() {
    let before = zoo().counts();
    let (_c, sink) = raw_sink(json!({ "act": "double" })).await;
    assert_eq!(
        codes(&sink.submit(batch(&["a"]), SOON).await),
        [(Applied::Yes, "")]
    );
    let (_c, sink) = raw_sink(json!({ "act": "foreign" })).await;
    assert_eq!(
        codes(&sink.submit(batch(&["a"]), SOON).await),
        [(Applied::Yes, "")]
    );
    let (connection, sink) = raw_sink(json!({ "act": "late", "ms": 200 })).await;
    let reply = sink.submit(batch(&["a"]), SOON);
    connection.fence();
    assert_eq!(reply.await.end, AnswerEnd::Fenced);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let after = zoo().counts();
    assert!(after.double > before.double, "{after:?}");
    assert!(after.foreign >= before.foreign + 3, "{after:?}");
    assert!(after.late > before.late, "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_plugin_is_answered_by_the_fence_alone() {
    let (connection, sink) = raw_sink(json!({ "act": "silent" })).await;
    let mut reply = Box::pin(sink.submit(batch(&["a"]), Duration::from_millis(10)));
    reply.cancel();
    assert!(
        tokio::time::timeout(Duration::from_millis(200), &mut reply)
            .await
            .is_err()
    );
    connection.fence();
    assert_eq!(reply.await.end, AnswerEnd::Fenced);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promise_better_than_declared_is_clamped_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let load = |lie| {
        Plugins::load(&LoadOptions {
            folders: vec![raw(folder.path(), lie)],
            ..LoadOptions::default()
        })
        .unwrap()
    };
    let request = ResolveRequest {
        operation: "zoo_raw.write".into(),
        connection: json!({}),
        function: json!({}),
    };
    let resolution = load("resolves_better").resolve(&request).unwrap();
    let ResolvedOperation::Sink(resolved) = resolution.operation else {
        panic!("a sink");
    };
    assert_eq!(resolved.promise.words(), "at least once");
    assert_eq!(
        resolution.clamped,
        ["zoo_raw.write resolves to effectively once and declares at least once"]
    );
    let failure = load("resolve_not_json").resolve(&request).unwrap_err();
    assert_eq!(failure.code, "bad_reply");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_names_and_configs_are_said() {
    let code = |result: Result<_, consign_loader::Failure>| {
        let failure = result.map(|_: SinkHandle| ()).unwrap_err();
        (failure.kind, failure.code)
    };
    let connection = connect("zoo", json!({})).await.unwrap();
    let wrong = connection
        .open_sink("zoo.count", json!({}), names(), SOON)
        .await;
    assert_eq!(
        code(wrong),
        (FailureKind::Config, "no_such_operation".into())
    );
    let wrong = connection
        .open_sink("zoo.write", json!({ "akt": 1 }), names(), SOON)
        .await;
    assert_eq!(code(wrong), (FailureKind::Config, "config".into()));
    let failure = connect("zebra", json!({})).await.unwrap_err();
    assert_eq!(failure.code, "no_such_connector");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_change_fail_and_panic_apart() {
    let open = |kind, name: &str| OpenFunction {
        kind,
        name: name.to_owned(),
        config: json!({}),
        names: names(),
    };
    let message = |body: &str| FunctionMessage {
        body: body.into(),
        ..FunctionMessage::default()
    };
    use consign_manifest::PluginKind::{ErrorHandler, Processor, Transform};
    for (kind, name) in [(Processor, "zoo_upper"), (Transform, "zoo_reject")] {
        let function = zoo().open_function(open(kind, name), SOON).await.unwrap();
        let answers = function
            .process(&[message("abc"), message("bad")], SOON)
            .await
            .unwrap();
        let FunctionAnswer::Changed(changed) = &answers[0] else {
            panic!("{answers:?}");
        };
        assert_eq!(changed.body, b"ABC");
        assert_eq!(changed.headers, [("seen".to_owned(), b"yes".to_vec())]);
        assert!(matches!(&answers[1], FunctionAnswer::Failed { code, .. } if code == "bad"));
        let failure = function
            .process(&[message("panic")], SOON)
            .await
            .unwrap_err();
        assert!(failure.panicked);
        let hung = function
            .process(&[message("hang")], Duration::from_millis(100))
            .await;
        assert_eq!(hung.unwrap_err().code, "deadline");
        function.close(SOON).await.unwrap();
        let closed = function.process(&[message("abc")], SOON).await.unwrap_err();
        assert_eq!(closed.code, "closed");
    }
    let handler = zoo()
        .open_function(open(ErrorHandler, "zoo_decide"), SOON)
        .await
        .unwrap();
    let report = |code: &str| {
        json!({ "write_key": "00", "adapter": "a", "route": "r", "send": "s", "code": code,
                "message": "m", "may_have_landed": false, "attempts": 5, "first_attempt_unix_ms": 0 })
    };
    let (decision, diverted) = handler
        .decide(&report("refused"), &message("x"), SOON)
        .await
        .unwrap();
    assert_eq!(
        decision,
        json!({ "park": { "reason": "refused after 5 attempts" } })
    );
    assert_eq!(diverted, None);
    let (decision, diverted) = handler
        .decide(&report("divert"), &message("x"), SOON)
        .await
        .unwrap();
    assert_eq!(decision, json!({ "divert": { "target": "a/r/other" } }));
    assert_eq!(diverted.unwrap().body, b"diverted x");
    let failure = handler
        .decide(&report("panic"), &message("x"), SOON)
        .await
        .unwrap_err();
    assert!(failure.panicked);
}

async fn raw_function(kind: PluginKind, act: &str) -> FunctionHandle {
    let open = OpenFunction {
        kind,
        name: "zoo_raw".into(),
        config: json!({ "act": act }),
        names: names(),
    };
    zoo().open_function(open, SOON).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_functions_that_make_no_sense_are_failures_and_never_a_message() {
    let message = FunctionMessage {
        body: b"abc".to_vec(),
        ..FunctionMessage::default()
    };
    let two = [message.clone(), message.clone()];
    for act in ["too_few", "too_many", "without_messages", ""] {
        let before = zoo().counts().garbage;
        let answer = raw_function(PluginKind::Processor, act)
            .await
            .process(&two, SOON)
            .await;
        assert_eq!(answer.unwrap_err().code, "sdk_outcome_count", "{act}");
        assert!(zoo().counts().garbage > before, "{act} is counted");
    }
    let answer = raw_function(PluginKind::Processor, "failed")
        .await
        .process(&two, SOON)
        .await;
    assert!(answer.is_err());
    for act in ["bad_spans", "unknown_codes"] {
        let answers = raw_function(PluginKind::Processor, act)
            .await
            .process(&two, SOON)
            .await
            .unwrap();
        assert!(
            answers
                .iter()
                .all(|answer| matches!(answer, FunctionAnswer::Failed { .. })),
            "{act}: a message of which nothing can be read is no answer: {answers:?}"
        );
    }
    let report = json!({});
    for act in ["not_json", "not_a_list", ""] {
        let answer = raw_function(PluginKind::ErrorHandler, act)
            .await
            .decide(&report, &message, SOON)
            .await;
        assert_eq!(answer.unwrap_err().code, "bad_reply", "{act}");
    }
    // What a later handler may say is the host's to judge: it does not know it, and parks.
    let answer = raw_function(PluginKind::ErrorHandler, "from_the_future")
        .await
        .decide(&report, &message, SOON)
        .await;
    assert_eq!(answer.unwrap().0, json!({ "teleport": { "to": "mars" } }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_that_cannot_be_opened_answer_too_much_or_hang_harm_nobody() {
    let open = |kind, name: &str, act: serde_json::Value| OpenFunction {
        kind,
        name: name.to_owned(),
        config: if act.is_null() {
            json!({})
        } else {
            json!({ "open": act })
        },
        names: names(),
    };
    let upper = |act| open(PluginKind::Processor, "zoo_upper", act);
    let code = async |act, deadline| {
        let opened = zoo().open_function(upper(act), deadline).await;
        opened.map(drop).unwrap_err().code
    };
    assert_eq!(code(json!("panic"), SOON).await, "plugin_panicked");
    assert_eq!(code(json!("down"), SOON).await, "zoo_down");
    assert_eq!(
        code(json!("hang"), Duration::from_millis(200)).await,
        "deadline"
    );
    let function = zoo().open_function(upper(json!(null)), SOON).await.unwrap();
    let message = |body: &str| FunctionMessage {
        body: body.into(),
        ..FunctionMessage::default()
    };
    let answers = function
        .process(&[message("huge"), message("talks")], SOON)
        .await
        .unwrap();
    let FunctionAnswer::Changed(changed) = &answers[0] else {
        panic!("a body of 40 MiB crosses whole");
    };
    assert_eq!(changed.body.len(), 40 << 20);
    let FunctionAnswer::Failed {
        code,
        message: said,
    } = &answers[1]
    else {
        panic!("it failed");
    };
    assert_eq!(code, "talks");
    assert!(
        said.len() < 2 * TEXT_MAX_BYTES && said.contains("bytes)"),
        "{} bytes",
        said.len()
    );

    let decide = open(PluginKind::ErrorHandler, "zoo_decide", json!(null));
    let handler = zoo().open_function(decide, SOON).await.unwrap();
    let report = |code: &str| json!({ "code": code, "divert": ["a/r/other"] });
    let hung = handler
        .decide(&report("hang"), &message("x"), Duration::from_millis(200))
        .await;
    assert_eq!(hung.unwrap_err().code, "deadline");
    let (_, fat) = handler
        .decide(&report("fat"), &message("x"), SOON)
        .await
        .unwrap();
    assert_eq!(fat.unwrap().body.len(), 40 << 20);
    // It still answers after all of that.
    let (decision, _) = handler
        .decide(&report("refused"), &message("x"), SOON)
        .await
        .unwrap();
    assert!(decision["park"].is_object(), "{decision}");
}

#[test]
fn the_manifest_arrives_whole() {
    let manifest: Arc<Manifest> = zoo().manifests()[0].clone();
    assert_eq!(
        manifest.connectors[0].description,
        "A connection to nothing, which misbehaves on demand."
    );
    assert_eq!(manifest.functions.len(), 3);
    assert_eq!(zoo().operation("zoo.count").unwrap().1.title, "Count");
    let files = zoo().files();
    assert_eq!(
        files[0].note.provides,
        ["zoo", "zoo_upper", "zoo_reject", "zoo_decide"]
    );
    assert!(
        files[0].note.rustc.starts_with("rustc 1."),
        "{:?}",
        files[0].note
    );
    assert_eq!(files[0].digest.len(), 64);
}
