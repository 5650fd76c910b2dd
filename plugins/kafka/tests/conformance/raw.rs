//! As much of the Kafka protocol as counting needs, over one TCP connection and without any client
//! library: requests and responses of announced length, record batches of format 2. Only versions are
//! spoken that have no tagged fields. A fault panics.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long an answer of the broker may take.
const PATIENCE: Duration = Duration::from_secs(30);

const PRODUCE: (i16, i16) = (0, 7);
const FETCH: (i16, i16) = (1, 4);
const LIST_OFFSETS: (i16, i16) = (2, 2);
const OFFSET_FETCH: (i16, i16) = (9, 3);
const CREATE_TOPICS: (i16, i16) = (19, 2);
const DELETE_TOPICS: (i16, i16) = (20, 1);

/// Answers that pass: a topic that was just made has no leader yet, or the coordinator is not there yet.
const NOT_YET: [i16; 6] = [3, 5, 6, 14, 15, 16];

/// A record as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Record {
    /// The first header of this name, as text.
    pub fn header(&self, name: &str) -> Option<String> {
        let found = self.headers.iter().find(|(n, _)| n == name.as_bytes());
        let value = found?.1.clone()?;
        String::from_utf8(value).ok()
    }
}

pub struct Raw {
    stream: TcpStream,
    requests: i32,
}

impl Raw {
    pub async fn connect(broker: SocketAddr) -> Self {
        let stream = TcpStream::connect(broker).await.expect("a Kafka broker");
        Self {
            stream,
            requests: 0,
        }
    }

    pub async fn create_topic(&mut self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let mut body = Writer::default();
        body.array(&[()], |body, ()| {
            body.text(name);
            body.i32(partitions);
            body.i16(1);
            body.i32(0);
            body.array(settings, |body, (name, value)| {
                body.text(name);
                body.text(value);
            });
        });
        body.i32(20_000);
        body.u8(0);
        let mut answer = self.ask(CREATE_TOPICS, body).await;
        answer.i32();
        answer.array(|answer| {
            answer.text();
            let error = answer.i16();
            let message = answer.text();
            assert_eq!(error, 0, "topic {name} was not made: {message}");
        });
        for partition in 0..partitions {
            self.end(name, partition).await;
        }
    }

    pub async fn delete_topic(&mut self, name: &str) {
        let mut body = Writer::default();
        body.array(&[name], |body, name| body.text(name));
        body.i32(20_000);
        let mut answer = self.ask(DELETE_TOPICS, body).await;
        answer.i32();
        answer.array(|answer| {
            answer.text();
            let error = answer.i16();
            assert!([0, 3].contains(&error), "topic {name}: error {error}");
        });
    }

    /// The offset behind the last record; waits until the partition has a leader.
    pub async fn end(&mut self, topic: &str, partition: i32) -> i64 {
        for _ in 0..200 {
            let mut body = Writer::default();
            body.i32(-1);
            body.u8(0);
            body.topic(topic, partition, |body| body.i64(-1));
            let mut answer = self.ask(LIST_OFFSETS, body).await;
            answer.i32();
            let (mut error, mut offset) = (0, 0);
            answer.partitions(|answer| {
                error = answer.i16();
                answer.i64();
                offset = answer.i64();
            });
            if error == 0 {
                return offset;
            }
            assert!(
                NOT_YET.contains(&error),
                "{topic}/{partition}: error {error}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{topic}/{partition} has no leader");
    }

    /// Every record of a partition, in order.
    pub async fn records(&mut self, topic: &str, partition: i32) -> Vec<Record> {
        let end = self.end(topic, partition).await;
        let (mut records, mut at) = (Vec::new(), 0);
        while at < end {
            let mut body = Writer::default();
            body.i32(-1);
            body.i32(1000);
            body.i32(1);
            body.i32(64 << 20);
            body.u8(0);
            body.topic(topic, partition, |body| {
                body.i64(at);
                body.i32(64 << 20);
            });
            let mut answer = self.ask(FETCH, body).await;
            answer.i32();
            let mut batches = Vec::new();
            answer.partitions(|answer| {
                let error = answer.i16();
                assert_eq!(error, 0, "{topic}/{partition}: error {error}");
                answer.i64();
                answer.i64();
                answer.array(|answer| {
                    answer.i64();
                    answer.i64();
                });
                batches = answer.bytes().unwrap_or_default();
            });
            let next = read_batches(&batches, at, &mut records);
            assert!(
                next > at,
                "{topic}/{partition} stands still at {at} of {end}"
            );
            at = next;
        }
        records
    }

    /// Stores records (key, value, header) in a partition as one batch.
    pub async fn produce(&mut self, topic: &str, partition: i32, records: &[Record]) {
        let batch = write_batch(records);
        for _ in 0..200 {
            let mut body = Writer::default();
            body.i16(-1);
            body.i16(-1);
            body.i32(20_000);
            body.topic(topic, partition, |body| body.bytes(&batch));
            let mut answer = self.ask(PRODUCE, body).await;
            let mut error = 0;
            answer.partitions(|answer| {
                error = answer.i16();
                answer.i64();
                answer.i64();
                answer.i64();
            });
            if error == 0 {
                return;
            }
            assert!(
                NOT_YET.contains(&error),
                "{topic}/{partition}: error {error}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{topic}/{partition} takes no records");
    }

    /// What a group has committed for a partition; none before it has.
    pub async fn committed(&mut self, group: &str, topic: &str, partition: i32) -> Option<i64> {
        let mut body = Writer::default();
        body.text(group);
        body.array(&[()], |body, ()| {
            body.text(topic);
            body.array(&[partition], |body, partition| body.i32(*partition));
        });
        let mut answer = self.ask(OFFSET_FETCH, body).await;
        answer.i32();
        let mut offset = -1;
        answer.partitions(|answer| {
            offset = answer.i64();
            answer.text();
            let error = answer.i16();
            assert!(error == 0 || NOT_YET.contains(&error), "error {error}");
        });
        (offset >= 0).then_some(offset)
    }

    async fn ask(&mut self, (api, version): (i16, i16), body: Writer) -> Reader {
        self.requests += 1;
        let mut request = Writer::default();
        request.i16(api);
        request.i16(version);
        request.i32(self.requests);
        request.text("conformance");
        request.0.extend(body.0);
        let mut framed = Writer::default();
        framed.bytes(&request.0);
        let exchange = async {
            self.stream.write_all(&framed.0).await.expect("written");
            let mut length = [0; 4];
            self.stream
                .read_exact(&mut length)
                .await
                .expect("an answer");
            let mut answer = vec![0; u32::from_be_bytes(length) as usize];
            self.stream
                .read_exact(&mut answer)
                .await
                .expect("an answer");
            answer
        };
        let answer = tokio::time::timeout(PATIENCE, exchange).await;
        let mut answer = Reader {
            bytes: answer.expect("an answer of the broker"),
            at: 0,
        };
        assert_eq!(answer.i32(), self.requests, "the answer to another request");
        answer
    }
}

/// Reads whole record batches from `at` on; the offset behind the last.
fn read_batches(bytes: &[u8], at: i64, records: &mut Vec<Record>) -> i64 {
    let mut reader = Reader {
        bytes: bytes.to_vec(),
        at: 0,
    };
    let mut next = at;
    while reader.left() > 12 {
        let base = reader.i64();
        let length = reader.i32() as usize;
        if reader.left() < length {
            // A batch that was cut off by the limit of the request.
            break;
        }
        let end = reader.at + length;
        reader.skip(4);
        assert_eq!(reader.u8(), 2, "the format of record batches");
        reader.skip(4);
        let attributes = reader.i16();
        assert_eq!(attributes & 7, 0, "compressed records are not read here");
        let last = reader.i32();
        reader.skip(8 + 8 + 8 + 2 + 4);
        let count = reader.i32();
        let control = attributes & 0x20 != 0;
        for _ in 0..count {
            reader.varint();
            reader.u8();
            reader.varint();
            let offset = base + reader.varint();
            let key = reader.var_bytes();
            let value = reader.var_bytes();
            let headers = (0..reader.varint())
                .map(|_| (reader.var_bytes().unwrap_or_default(), reader.var_bytes()))
                .collect();
            if offset >= at && !control {
                records.push(Record {
                    offset,
                    key,
                    value,
                    headers,
                });
            }
        }
        assert_eq!(reader.at, end, "a record batch of another length");
        next = base + i64::from(last) + 1;
    }
    next
}

fn write_batch(records: &[Record]) -> Vec<u8> {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_millis() as i64;
    let mut counted = Writer::default();
    counted.i16(0);
    counted.i32(records.len() as i32 - 1);
    counted.i64(now);
    counted.i64(now);
    counted.i64(-1);
    counted.i16(-1);
    counted.i32(-1);
    counted.i32(records.len() as i32);
    for (index, record) in records.iter().enumerate() {
        let mut body = Writer::default();
        body.u8(0);
        body.varint(0);
        body.varint(index as i64);
        body.var_bytes(record.key.as_deref());
        body.var_bytes(record.value.as_deref());
        body.varint(record.headers.len() as i64);
        for (name, value) in &record.headers {
            body.var_bytes(Some(name));
            body.var_bytes(value.as_deref());
        }
        counted.varint(body.0.len() as i64);
        counted.0.extend(body.0);
    }
    let mut batch = Writer::default();
    batch.i64(0);
    batch.i32((4 + 1 + 4 + counted.0.len()) as i32);
    batch.i32(-1);
    batch.u8(2);
    batch.i32(crc32c::crc32c(&counted.0) as i32);
    batch.0.extend(counted.0);
    batch.0
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn i16(&mut self, value: i16) {
        self.0.extend(value.to_be_bytes());
    }

    fn i32(&mut self, value: i32) {
        self.0.extend(value.to_be_bytes());
    }

    fn i64(&mut self, value: i64) {
        self.0.extend(value.to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        self.i16(text.len() as i16);
        self.0.extend(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.i32(bytes.len() as i32);
        self.0.extend(bytes);
    }

    fn array<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.i32(items.len() as i32);
        for item in items {
            each(self, item);
        }
    }

    /// One topic with one partition.
    fn topic(&mut self, topic: &str, partition: i32, rest: impl FnOnce(&mut Self)) {
        self.i32(1);
        self.text(topic);
        self.i32(1);
        self.i32(partition);
        rest(self);
    }

    fn varint(&mut self, value: i64) {
        let mut rest = ((value << 1) ^ (value >> 63)) as u64;
        while rest >= 0x80 {
            self.u8(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.u8(rest as u8);
    }

    fn var_bytes(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            None => self.varint(-1),
            Some(bytes) => {
                self.varint(bytes.len() as i64);
                self.0.extend(bytes);
            }
        }
    }
}

struct Reader {
    bytes: Vec<u8>,
    at: usize,
}

impl Reader {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn skip(&mut self, count: usize) -> &[u8] {
        self.at += count;
        &self.bytes[self.at - count..self.at]
    }

    fn u8(&mut self) -> u8 {
        self.skip(1)[0]
    }

    fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.skip(2).try_into().expect("two bytes"))
    }

    fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.skip(4).try_into().expect("four bytes"))
    }

    fn i64(&mut self) -> i64 {
        i64::from_be_bytes(self.skip(8).try_into().expect("eight bytes"))
    }

    fn text(&mut self) -> String {
        match self.i16() {
            ..0 => String::new(),
            length => String::from_utf8_lossy(self.skip(length as usize)).into_owned(),
        }
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        match self.i32() {
            ..0 => None,
            length => Some(self.skip(length as usize).to_vec()),
        }
    }

    fn array(&mut self, mut each: impl FnMut(&mut Self)) {
        for _ in 0..self.i32() {
            each(self);
        }
    }

    /// Every partition of every topic, its number skipped.
    fn partitions(&mut self, mut each: impl FnMut(&mut Self)) {
        self.array(|reader| {
            reader.text();
            reader.array(|reader| {
                reader.i32();
                each(reader);
            });
        });
    }

    fn varint(&mut self) -> i64 {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = self.u8();
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return (value >> 1) as i64 ^ -((value & 1) as i64);
            }
            shift += 7;
        }
    }

    fn var_bytes(&mut self) -> Option<Vec<u8>> {
        match self.varint() {
            ..0 => None,
            length => Some(self.skip(length as usize).to_vec()),
        }
    }
}
