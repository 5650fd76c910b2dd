//! The sink in process, against the small server.

use crate::config::{ConnectionConfig, PutConfig};
use crate::server::{self, Lines};
use crate::sink::Put;
use consign_plugin::Applied;
use consign_plugin::prelude::*;
use consign_plugin::testing::{self, TestWrite};
use std::sync::Mutex;

async fn open() -> (Put, Arc<Mutex<Lines>>) {
    let (address, shelf) = server::start().await;
    let connection = ConnectionConfig {
        address,
        timeouts: Timeouts::default(),
    };
    // The host replaces `{{ … }}` by a slot and renders it for each write.
    let config = PutConfig {
        tag: Template::slot(0),
    };
    (
        testing::open_sink::<Put>(connection, config).await.unwrap(),
        shelf,
    )
}

fn write(body: &str, key: u8) -> TestWrite {
    TestWrite::new(body).key([key; 16]).template(0, "left")
}

#[tokio::test]
async fn a_body_is_put_once_however_often_it_is_sent() {
    let (sink, shelf) = open().await;
    let batch = testing::batch([write("a", 1), write("b", 2)]);
    assert!(
        testing::write(&sink, &batch)
            .await
            .iter()
            .all(|o| *o == Outcome::delivered())
    );
    assert!(
        testing::write(&sink, &batch)
            .await
            .iter()
            .all(Outcome::is_repeat)
    );
    let kept = &shelf.lock().unwrap().kept;
    assert_eq!(kept.len(), 2);
    assert_eq!(kept[&"01".repeat(16)], ("left".to_owned(), "a".to_owned()));
}

#[tokio::test]
async fn a_swallowed_answer_leaves_the_write_unknown_and_a_resend_makes_no_copy() {
    let (sink, shelf) = open().await;
    shelf.lock().unwrap().swallow_next = true;
    let batch = testing::batch([write("a", 1)]);
    assert_eq!(
        testing::write(&sink, &batch).await[0].applied(),
        Applied::Maybe
    );
    assert_eq!(
        shelf.lock().unwrap().kept.len(),
        1,
        "the fault fired after the effect"
    );
    assert!(testing::write(&sink, &batch).await[0].is_repeat());
    assert_eq!(shelf.lock().unwrap().kept.len(), 1);
}

#[tokio::test]
async fn a_place_that_cannot_be_is_refused_and_its_neighbour_is_not() {
    let (sink, shelf) = open().await;
    let batch = testing::batch([TestWrite::new("a").template(0, "no tag"), write("b", 2)]);
    let outcomes = testing::write(&sink, &batch).await;
    assert_eq!(outcomes[0].code(), "line");
    assert_eq!(outcomes[1], Outcome::delivered());
    assert_eq!(shelf.lock().unwrap().kept.len(), 1);
}

#[tokio::test]
async fn nobody_listening_is_down() {
    let connection = ConnectionConfig {
        address: "127.0.0.1:1".to_owned(),
        timeouts: Timeouts::default(),
    };
    let config = PutConfig {
        tag: Template::literal("left"),
    };
    let failure = testing::open_sink::<Put>(connection, config)
        .await
        .err()
        .unwrap();
    assert_eq!(failure.kind, FailureKind::Down);
}
