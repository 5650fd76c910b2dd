//! The stored write reads back as it was written, and garbage is an error, never a panic.

use bytes::Bytes;
use consign_pipeline::{DecodeError, MessageId, Original, STORED_VERSION, StoredWrite};
use proptest::prelude::*;
use serde_json::{Map, Value};

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn headers() -> impl Strategy<Value = Vec<(String, Bytes)>> {
    prop::collection::vec((".{0,8}", bytes()), 0..4)
}

fn original() -> impl Strategy<Value = Original> {
    (
        prop::option::of(".{0,8}"),
        prop::option::of(".{0,8}"),
        headers(),
        bytes(),
    )
        .prop_map(|(content_type, routing_key, headers, body)| Original {
            content_type,
            routing_key,
            headers,
            body,
        })
}

fn write() -> impl Strategy<Value = StoredWrite> {
    let source = prop::collection::hash_map(".{0,5}", any::<i64>(), 0..3).prop_map(|m| {
        m.into_iter()
            .map(|(k, v)| (k, Value::from(v)))
            .collect::<Map<_, _>>()
    });
    (
        (any::<[u8; 16]>(), any::<i64>(), source),
        (prop::option::of(".{0,8}"), prop::option::of(".{0,8}")),
        headers(),
        prop::collection::vec(".{0,8}", 0..4),
        prop::collection::vec((any::<u32>(), bytes()), 0..3),
        prop::option::of(original()),
        bytes(),
    )
        .prop_map(
            |(
                (id, time_unix_ms, source),
                (content_type, routing_key),
                headers,
                slots,
                attributes,
                original,
                body,
            )| StoredWrite {
                message_id: MessageId(id),
                time_unix_ms,
                content_type,
                routing_key,
                source,
                headers,
                slots,
                attributes,
                original,
                body,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn reads_back_as_written(write in write()) {
        let stored = write.encode();
        prop_assert!(stored.len() <= write.size_hint(), "{} > {}", stored.len(), write.size_hint());
        prop_assert_eq!(StoredWrite::decode(stored), Ok(write));
    }

    #[test]
    fn garbage_is_an_error(garbage in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = StoredWrite::decode(Bytes::from(garbage.clone()));
        let mut versioned = vec![STORED_VERSION];
        versioned.extend(garbage);
        let _ = StoredWrite::decode(Bytes::from(versioned));
    }

    #[test]
    fn a_changed_byte_never_panics(write in write(), at in any::<prop::sample::Index>(), with: u8) {
        let mut stored = write.encode().to_vec();
        let at = at.index(stored.len());
        stored[at] = with;
        let _ = StoredWrite::decode(Bytes::from(stored));
    }

    #[test]
    fn a_cut_before_the_body_is_an_error(write in write(), at in any::<prop::sample::Index>()) {
        let stored = write.encode();
        let head = stored.len() - write.body.len();
        let cut = at.index(head);
        prop_assert_eq!(StoredWrite::decode(stored.slice(..cut)), Err(DecodeError::Damaged));
    }
}

#[test]
fn a_later_version_is_named() {
    let told = StoredWrite::decode(Bytes::from_static(b"\x09 anything")).unwrap_err();
    assert_eq!(told, DecodeError::Version(9));
    assert!(told.to_string().contains("format 9"));
    assert_eq!(StoredWrite::decode(Bytes::new()), Err(DecodeError::Damaged));
}

/// A count that promises more than there is allocates nothing.
#[test]
fn a_boastful_count_is_an_error() {
    let mut stored = StoredWrite::default().encode().to_vec();
    let headers = 1 + 16 + 8 + 1;
    stored.splice(headers..=headers, [0xff; 9].into_iter().chain([0x01]));
    assert_eq!(
        StoredWrite::decode(Bytes::from(stored)),
        Err(DecodeError::Damaged)
    );
}

/// The bytes a released version wrote; they are read for ever.
#[test]
fn version_1_is_read_for_ever() {
    let fixture: &[u8] = include_bytes!("fixtures/stored_write_v1.bin");
    let write = StoredWrite::decode(Bytes::from_static(fixture)).unwrap();
    assert_eq!(write, fixture_write());
    assert_eq!(write.encode(), fixture);
}

fn fixture_write() -> StoredWrite {
    StoredWrite {
        message_id: MessageId([7; 16]),
        time_unix_ms: 1_700_000_000_123,
        content_type: Some("application/json".into()),
        routing_key: Some("payment.completed".into()),
        source: Map::from_iter([("partition".to_owned(), Value::from(3))]),
        headers: vec![
            ("x-tenant".into(), Bytes::from_static(b"north")),
            ("x-raw".into(), Bytes::from_static(b"\xff\x00")),
        ],
        slots: vec!["receipts.17".into(), String::new()],
        attributes: vec![(1_000_000, Bytes::from_static(b"later"))],
        original: Some(Original {
            content_type: None,
            routing_key: Some("payment.completed".into()),
            headers: vec![("x-tenant".into(), Bytes::from_static(b"north"))],
            body: Bytes::from_static(b"{ \"amount\": 1.10 }"),
        }),
        body: Bytes::from_static(b"{\"amount\":1.10,\"cents\":110}"),
    }
}
