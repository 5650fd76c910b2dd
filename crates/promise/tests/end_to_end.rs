//! Level four: every cell of the table, and that no level is stronger than the one before it.

mod common;
use common::*;
use consign_manifest::*;
use consign_promise::*;

/// The five columns, by their declaration.
fn columns() -> [SinkDeclaration; 5] {
    [
        sqlite_write(),
        localfile_write(),
        second_copy(),
        unconfirmed(),
        at_most_once(),
    ]
}

fn cell(source: &SourceFacts, d: &SinkDeclaration, delivery: DeliveryMode) -> EndToEnd {
    let facts = SendFacts {
        delivery,
        ..SendFacts::default()
    };
    end_to_end(source, &resolve(d, &as_declared(d), &facts), None)
}

use Level::{
    AtLeastOnce as Alo, AtLeastOnceUnconfirmed as Unconfirmed, AtMostOnce as Amo, BestEffort as Be,
    EffectivelyOnce as Eo,
};

#[track_caller]
fn row(source: &SourceFacts, delivery: DeliveryMode, expected: [Level; 5]) -> Vec<EndToEnd> {
    let cells: Vec<EndToEnd> = columns()
        .iter()
        .map(|d| cell(source, d, delivery))
        .collect();
    let levels: Vec<Level> = cells.iter().map(|c| c.level).collect();
    assert_eq!(levels, expected);
    cells
}

#[test]
fn offset_tracked_with_identity() {
    let cells = row(
        &stable(),
        DeliveryMode::Direct,
        [Eo, Eo, Alo, Unconfirmed, Be],
    );
    assert!(
        cells
            .iter()
            .all(|c| c.fault.is_none() && !c.from_acceptance)
    );
    assert!(cells[2].notes[0].contains("same write key"));
    let cells = row(
        &stable(),
        DeliveryMode::Buffered,
        [Eo, Eo, Alo, Unconfirmed, Be],
    );
    assert!(cells[4].fault.is_some(), "at most once is never buffered");
    assert!(cells[..4].iter().all(|c| c.fault.is_none()));
    assert!(cells.iter().all(|c| c.keys == KeyAcross::Same));
}

#[test]
fn offset_tracked_by_expression_is_as_good_as_an_identity() {
    let source = source(DeliveryType::OffsetTrackedIndividual, Identity::Expression);
    row(
        &source,
        DeliveryMode::Buffered,
        [Eo, Eo, Alo, Unconfirmed, Be],
    );
}

#[test]
fn offset_tracked_without_identity() {
    for delivery in [DeliveryMode::Direct, DeliveryMode::Buffered] {
        let cells = row(&nameless(), delivery, [Alo, Eo, Alo, Unconfirmed, Be]);
        for keyed in [0, 2] {
            assert!(cells[keyed].notes[0].contains("has another key"), "{keyed}");
        }
        assert!(cells.iter().all(|c| c.keys == KeyAcross::Differ));
    }
}

#[test]
fn offset_tracked_without_identity_where_the_key_names_the_target() {
    let d = localfile_write();
    let facts = SendFacts {
        key_names_target: true,
        ..SendFacts::default()
    };
    let e = end_to_end(&nameless(), &resolve(&d, &as_declared(&d), &facts), None);
    assert_eq!(e.level, Alo);
    assert!(e.notes.iter().any(|n| n.contains("names the target")));
    let e = end_to_end(&stable(), &resolve(&d, &as_declared(&d), &facts), None);
    assert_eq!(
        e.level, Eo,
        "with an identity the key is the same each time"
    );
}

#[test]
fn session_based_with_a_client_key_buffered() {
    let cells = row(
        &with_client_key(),
        DeliveryMode::Buffered,
        [Eo, Eo, Alo, Unconfirmed, Amo],
    );
    assert!(cells.iter().all(|c| c.from_acceptance));
    assert_eq!(cells[0].windows, ["the client key's window: 1d"]);
    assert!(cells[1].windows.is_empty());
    assert!(cells[4].fault.is_some());
    assert_eq!(
        cells[0].line(),
        "effectively once from acceptance (inside the client key's window: 1d)"
    );
}

#[test]
fn session_based_in_both_windows() {
    let e = cell(&with_client_key(), &nats_publish(), DeliveryMode::Buffered);
    assert_eq!(e.windows.len(), 2, "{:?}", e.windows);
}

#[test]
fn session_based_without_a_key_buffered() {
    let cells = row(
        &without_client_key(),
        DeliveryMode::Buffered,
        [Eo, Eo, Alo, Unconfirmed, Amo],
    );
    assert_eq!(cells[0].notes, ["a client's own retry is a new message"]);
    assert!(cells[4].fault.is_some());
}

#[test]
fn session_based_direct_is_at_most_once_throughout() {
    for source in [with_client_key(), without_client_key()] {
        let cells = row(&source, DeliveryMode::Direct, [Amo; 5]);
        assert!(cells.iter().all(|c| c.fault.is_none()));
        assert!(cells[0].notes[0].contains("never resent"));
    }
}

#[test]
fn a_contradicted_destination_lowers_the_whole_way() {
    let d = sqlite_write();
    let p = resolve(&d, &as_declared(&d), &SendFacts::default());
    let i = inspected(&p, Some(&Inspection::contradicted("no unique index")));
    assert_eq!(end_to_end(&stable(), &p, Some(&i)).level, Alo);
}

#[test]
fn no_level_is_stronger_than_the_one_before_it() {
    let sources = [
        stable(),
        nameless(),
        with_client_key(),
        without_client_key(),
        source(
            DeliveryType::OffsetTrackedCumulative,
            Identity::Stable("offset".into()),
        ),
    ];
    let orders = [
        Order::Strict,
        Order::None,
        Order::ByKey {
            serialises_target: true,
        },
        Order::ByKey {
            serialises_target: false,
        },
    ];
    let inspections = [
        None,
        Some(Inspection::verified("x")),
        Some(Inspection::contradicted("x")),
        Some(Inspection::not_inspected("x")),
    ];
    let promises = [
        Promise::EffectivelyOnce,
        Promise::AtLeastOnce,
        Promise::AtMostOnce,
    ];
    let kinds = [
        RepeatKind::WriteKey,
        RepeatKind::SameTarget,
        RepeatKind::SecondCopy,
        RepeatKind::NotApplicable,
    ];
    let mut seen = 0;
    let mut levels = std::collections::BTreeSet::new();
    for d in columns() {
        for promise in promises {
            for repeat in kinds {
                for bits in 0..32_u32 {
                    for order in orders {
                        let bit = |n: u32| bits & (1 << n) != 0;
                        let mut answer = as_declared(&d);
                        (answer.promise, answer.repeat, answer.unconfirmed) =
                            (promise, repeat, bit(0));
                        let mut d = d.clone();
                        d.sealed = bit(1);
                        let facts = SendFacts {
                            delivery: if bit(2) {
                                DeliveryMode::Direct
                            } else {
                                DeliveryMode::Buffered
                            },
                            order,
                            key_names_target: bit(3),
                            sealed_batches: bit(4),
                            ..SendFacts::default()
                        };
                        let p = resolve(&d, &answer, &facts);
                        assert!(p.level <= p.declared, "{p:?}");
                        assert!(p.level <= Level::of(promise, bit(0)), "{p:?}");
                        assert!(
                            p.level != Eo
                                || matches!(
                                    p.repeat,
                                    RepeatKind::SameTarget | RepeatKind::WriteKey
                                )
                        );
                        for inspection in &inspections {
                            let i = inspected(&p, inspection.as_ref());
                            assert!(i.level <= p.level);
                            for source in &sources {
                                let e = end_to_end(source, &p, Some(&i));
                                assert!(e.level <= i.level, "{e:?} over {i:?}");
                                levels.insert(e.level);
                                seen += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(seen > 100_000);
    assert_eq!(levels.len(), Level::ALL.len(), "every level is met");
}
