//! The generated page, the records behind it, and the ceiling.

mod common;
use common::*;
use consign_manifest::*;
use consign_promise::{
    ceiling,
    proven::{self, Proven, ProvenError, ProvenFile, ServerKind},
    table,
};
use std::collections::BTreeMap;

fn ours() -> Vec<Manifest> {
    let jetstream = SourceDeclaration {
        delivery: DeliveryType::OffsetTrackedIndividual,
        identity: Identity::Stable("stream incarnation and sequence".into()),
        redelivery_bound_ms: Some(86_400_000),
        note: "a | in a note".into(),
    };
    let receive = SourceDeclaration {
        delivery: DeliveryType::SessionBased,
        identity: Identity::ClientKey,
        redelivery_bound_ms: None,
        note: String::new(),
    };
    use OperationDeclaration::{Sink, Source};
    vec![
        manifest(vec![
            (
                "sqlite",
                "SQLite",
                vec![("sqlite.write", Sink(sqlite_write()))],
            ),
            (
                "nats",
                "NATS",
                vec![
                    ("nats.publish", Sink(nats_publish())),
                    ("nats.consume", Source(jetstream)),
                ],
            ),
        ]),
        manifest(vec![
            (
                "localfile",
                "Local File",
                vec![("localfile.write.local", Sink(localfile_write()))],
            ),
            ("http", "HTTP", vec![("http.receive", Source(receive))]),
        ]),
    ]
}

fn record() -> Proven {
    Proven {
        operation: "nats.publish".into(),
        server: "nats-server".into(),
        version: "2.10.27".into(),
        kind: ServerKind::R,
        plugin_digest: "aa".into(),
        declaration_digest: proven::declaration_digest(&OperationDeclaration::Sink(nats_publish())),
        date: "2026-11-30".into(),
        scenarios: vec!["clean".into()],
    }
}

fn file(records: Vec<Proven>) -> ProvenFile {
    ProvenFile {
        format: 1,
        connector: "nats".into(),
        records,
    }
}

#[test]
fn the_page_is_the_same_whatever_the_order_of_the_plugins() {
    let proven = [file(vec![record()])];
    let digests = BTreeMap::from([("nats".to_owned(), "aa".to_owned())]);
    let page = table::render(&ours(), &proven, &digests).unwrap();
    let mut turned = ours();
    turned.reverse();
    assert_eq!(table::render(&turned, &proven, &digests).unwrap(), page);
    insta::assert_snapshot!(page);
}

#[test]
fn a_changed_declaration_makes_its_record_stale() {
    let mut stale = record();
    stale.declaration_digest = "0".repeat(64);
    let error = table::render(&ours(), &[file(vec![stale])], &BTreeMap::new()).unwrap_err();
    assert_eq!(
        error[0].to_string(),
        "nats.publish: the declaration changed after it was proven against nats-server 2.10.27; \
         run `cargo xtask conformance nats` again"
    );
}

#[test]
fn a_changed_plugin_makes_its_record_stale() {
    let digests = BTreeMap::from([("nats".to_owned(), "bb".to_owned())]);
    let error = table::render(&ours(), &[file(vec![record()])], &digests).unwrap_err();
    assert!(error[0].to_string().contains("the plugin changed"));
}

#[test]
fn a_record_of_nothing_is_stale() {
    let mut gone = record();
    gone.operation = "nats.shout".into();
    let mut foreign = record();
    foreign.operation = "sqlite.write".into();
    let errors =
        table::render(&ours(), &[file(vec![gone, foreign])], &BTreeMap::new()).unwrap_err();
    assert_eq!(errors.len(), 2);
}

#[test]
fn a_note_may_be_reworded_and_a_promise_may_not() {
    let digest = |d: SinkDeclaration| proven::declaration_digest(&OperationDeclaration::Sink(d));
    let mut reworded = nats_publish();
    reworded.note = "in other words".into();
    assert_eq!(digest(reworded), digest(nats_publish()));
    let mut changed = nats_publish();
    changed.repeat.window = Window::None;
    assert_ne!(digest(changed), digest(nats_publish()));
}

#[test]
fn proven_files_are_read_back_and_bad_ones_named() {
    let mut f = file(vec![record()]);
    let text = f.to_text();
    assert_eq!(ProvenFile::parse(&text).unwrap(), f);
    let mut newer = record();
    newer.version = "2.11.0".into();
    f.record(newer.clone());
    assert_eq!(f.records, [newer], "one record for an operation and server");
    assert!(matches!(
        ProvenFile::parse("{}"),
        Err(ProvenError::Unreadable(_))
    ));
    assert_eq!(
        ProvenFile::parse(&text.replace("\"format\": 1", "\"format\": 9")),
        Err(ProvenError::Newer(9))
    );
    assert!(matches!(
        ProvenFile::parse(&text.replace("2026-11-30", "30.11.2026")),
        Err(ProvenError::Unreadable(_))
    ));
    assert!(matches!(
        ProvenFile::parse(&text.replace("\"server\"", "\"sever\"")),
        Err(ProvenError::Unreadable(_))
    ));
}

/// The lines of a published table for our first operations, other columns included.
const CEILING: &str = "\
connector\toperation\ttitle\tpromise\trepeat\tkey\tnote
Local File\tlocalfile.write.local\tWrite File\tEffectively once\tYes: the same target, not in append mode: a repeat replaces its own copy (no window)\tNone: no field\t
NATS\tnats.publish\tPublish\tEffectively once\tYes: by the write key, with useJetStream; window: the stream's Duplicates window (2 min by default)\theader\t
TCP\ttcp.send\tSend\tAt least once\tNo: a repeat is a second copy\tNone: raw bytes\tnot confirmed
UDP\tudp.send\tSend\tAt most once (not buffered)\tNot applicable\tNone: raw bytes\t
";

#[test]
fn our_operations_stay_below_the_ceiling() {
    let rows = ceiling::parse(CEILING).unwrap();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows["udp.send"].promise, Promise::AtMostOnce);
    assert_eq!(rows["udp.send"].repeat, RepeatKind::NotApplicable);
    assert_eq!(rows["tcp.send"].repeat, RepeatKind::SecondCopy);
    assert_eq!(ceiling::check(&rows, &ours()), Vec::<String>::new());
}

#[test]
fn more_than_the_ceiling_is_a_fault() {
    let rows = ceiling::parse(CEILING).unwrap();
    use OperationDeclaration::Sink;
    let faults = ceiling::check(
        &rows,
        &[manifest(vec![(
            "x",
            "X",
            vec![
                ("tcp.send", Sink(sqlite_write())),
                ("udp.send", Sink(at_most_once())),
                ("localfile.write.local", Sink(sqlite_write())),
                ("x.unknown", Sink(second_copy())),
                ("nats.publish", Sink(second_copy())),
            ],
        )])],
    );
    assert_eq!(faults.len(), 3, "{faults:?}");
    assert!(
        faults[0].starts_with("tcp.send: declares effectively once, the table allows at least")
    );
    assert!(faults[1].starts_with("localfile.write.local: declares that a repeat is dropped"));
    assert!(faults[2].starts_with("x.unknown: no such operation"));
}

#[test]
fn a_table_that_cannot_be_read_names_its_line() {
    for (text, part) in [
        ("", "empty"),
        ("operation\tpromise\n", "line 1: no column `repeat`"),
        (
            "operation\tpromise\trepeat\na\tperhaps\tNo\n",
            "line 2: `perhaps` is no promise",
        ),
        (
            "operation\tpromise\trepeat\na\tAt least once\tmaybe\n",
            "line 2: `maybe` says nothing",
        ),
        (
            "operation\tpromise\trepeat\na\tAt least once\tNo\na\tAt least once\tNo\n",
            "line 3: `a` stands there twice",
        ),
        (
            "operation\tpromise\trepeat\n\tAt least once\tNo\n",
            "line 2: no operation",
        ),
    ] {
        let error = ceiling::parse(text).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}
