//! The kit against plugins that lie (`liars/`): each lie fails the scenario that is made for it, with a
//! failure that teaches; the honest operation passes them all.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use async_trait::async_trait;
use consign_testkit::conformance::{
    Access, Destination, Effect, Failure, Kind, Origin, Place, Product, Ran, Scenario, Setup,
    Verdict, run_one, run_source,
};
use consign_testkit::host::built;
use consign_testkit::keyed_server::KeyedServer;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// A folder with the lying plugin and nothing else, built here where it is not there yet.
fn liars() -> Vec<PathBuf> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let profile = built().consign.parent().unwrap().to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        // As a test run of the workspace builds it, so that nothing is compiled twice.
        cargo
            .args(["build", "--quiet", "--workspace", "--example", "liars"])
            .env("CARGO_TARGET_DIR", profile.parent().unwrap());
        assert!(cargo.status().unwrap().success(), "the liars do not build");
        let folder = profile.join("liars");
        std::fs::create_dir_all(&folder).unwrap();
        let name = "libliars.so";
        let new = folder.join(format!(".new-{name}"));
        std::fs::copy(profile.join("examples").join(name), &new).unwrap();
        std::fs::rename(new, folder.join(name)).unwrap();
        folder
    });
    vec![folder.clone()]
}

struct Liar {
    operation: &'static str,
    server: KeyedServer,
}

impl Liar {
    async fn new(operation: &'static str) -> Self {
        Self {
            operation,
            server: KeyedServer::start(true).await.unwrap(),
        }
    }

    async fn run(&self, scenario: Scenario) -> Ran {
        run_one("liars", self, scenario, &liars()).await
    }

    async fn caught(&self, scenario: Scenario) -> (Failure, String) {
        let ran = self.run(scenario).await;
        let text = ran.to_string();
        match ran.verdict {
            Verdict::Failed {
                failure,
                declaration,
                saved,
                rerun,
            } => {
                assert!(declaration.contains(self.operation), "{declaration}");
                assert!(saved.join("transcript.txt").is_file(), "{text}");
                assert!(
                    rerun
                        == format!(
                            "cargo test --test conformance -- --case put --scenario {scenario}"
                        ),
                    "{rerun}"
                );
                assert!(text.contains(scenario.sentence()), "{text}");
                (failure, text)
            }
            _ => panic!("the lie was not caught:\n{text}"),
        }
    }
}

#[async_trait]
impl Destination for Liar {
    fn operation(&self) -> &'static str {
        self.operation
    }

    fn case(&self) -> &'static str {
        "put"
    }

    fn product(&self) -> Product {
        Product {
            server: "keyed server".into(),
            version: "1".into(),
            kind: Kind::Own,
        }
    }

    fn access(&self) -> Access {
        Access::Network {
            server: self.server.address(),
            applies: Vec::new(),
            shows_key: true,
        }
    }

    async fn prepare(&self, place: &Place) -> Setup {
        let address = place.address.unwrap();
        Setup {
            connection: format!("{{ connector: liars, config: {{ address: \"{address}\" }} }}"),
            config: "{}".into(),
            order: "none".into(),
        }
    }

    async fn effects(&self, place: &Place) -> Vec<Effect> {
        let stored = self.server.stored();
        let ours = stored
            .into_iter()
            .filter(|(id, _)| id.starts_with(&place.tag));
        ours.map(|(id, key)| Effect { id, key }).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_honest_operation_keeps_its_promise_in_every_scenario() {
    let honest = Liar::new("liars.honest").await;
    for scenario in Scenario::ALL {
        if !scenario.applies_to(&honest) {
            continue;
        }
        let ran = honest.run(scenario).await;
        assert!(!ran.failed(), "{ran}");
        assert_eq!(
            ran.kept(),
            scenario != Scenario::AgainOutsideWindow,
            "{ran}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effectively_once_that_is_not_is_caught() {
    let liar = Liar::new("liars.other_key").await;
    let (failure, text) = liar.caught(Scenario::ReplySwallowed).await;
    assert!(matches!(failure, Failure::Contradicted(_)), "{text}");
    assert!(text.contains("2 effects; allowed: 1"), "{text}");
    assert!(text.contains("Effectively once"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_missing_on_a_resend_is_caught() {
    let liar = Liar::new("liars.keyless_resend").await;
    let (failure, text) = liar.caught(Scenario::ReplySwallowed).await;
    assert!(matches!(failure, Failure::Contradicted(_)), "{text}");
    assert!(text.contains("copy 2"), "{text}");
    assert!(text.contains("carries no write key"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivered_before_the_server_answered_is_caught() {
    let liar = Liar::new("liars.early").await;
    // The request is lost, and nobody sends it again.
    let (failure, text) = liar.caught(Scenario::CutBeforeRequest).await;
    assert!(matches!(failure, Failure::Contradicted(_)), "{text}");
    // The answer never came, and the write is settled all the same.
    let (failure, text) = liar.caught(Scenario::ReplySwallowed).await;
    assert!(matches!(failure, Failure::Contradicted(_)), "{text}");
    assert!(text.contains("never came"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_that_never_fires_proves_nothing_and_fails() {
    let liar = Liar::new("liars.unreadable").await;
    let (failure, text) = liar.caught(Scenario::CutBeforeRequest).await;
    assert!(matches!(failure, Failure::NeverFired(_)), "{text}");
}

/// A source that acknowledges what it has only handed over.
struct Eager(KeyedServer);

#[async_trait]
impl Origin for Eager {
    fn operation(&self) -> &'static str {
        "liars.eager"
    }

    fn case(&self) -> &'static str {
        "take"
    }

    fn product(&self) -> Product {
        Product {
            server: "a folder".into(),
            version: "1".into(),
            kind: Kind::Own,
        }
    }

    async fn prepare(&self, place: &Place) -> Setup {
        Setup {
            connection: format!(
                "{{ connector: liars, config: {{ address: \"{}\" }} }}",
                self.0.address()
            ),
            config: format!("{{ folder: {:?} }}", place.folder),
            order: String::new(),
        }
    }

    async fn offer(&self, place: &Place, ids: &[String]) {
        let new = place.folder.join(".offered");
        std::fs::write(&new, ids.join("\n")).unwrap();
        std::fs::rename(new, place.folder.join("offered")).unwrap();
    }

    async fn settled(&self, place: &Place) -> Option<u64> {
        let settled = std::fs::read_to_string(place.folder.join("settled"));
        Some(settled.ok().and_then(|text| text.parse().ok()).unwrap_or(0))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_ahead_of_acceptance_is_caught() {
    let eager = Eager(KeyedServer::start(true).await.unwrap());
    let scenario = Scenario::AcknowledgedAfterAcceptance;
    let ran = run_source("liars", &eager, scenario, &liars()).await;
    let text = ran.to_string();
    assert!(ran.failed(), "{text}");
    assert!(text.contains("ran ahead of acceptance"), "{text}");
}
