//! What a write becomes: topic, key, partition, time and headers of a record.

use crate::config::{ProduceConfig, RecordTime, is_header_name, is_topic};
use crate::outcome::{Answer, outcome};
use consign_plugin::prelude::*;
use rdkafka::message::{Header, OwnedHeaders};

const CONTENT_TYPE: &str = "content-type";

/// What a batch of one record takes besides its parts, at the least.
const OVERHEAD_BYTES: usize = 61;

/// A record but for its value, which is the write's body.
#[derive(Debug)]
pub(crate) struct Record {
    pub topic: String,
    pub key: Option<String>,
    pub partition: Option<i32>,
    pub time_unix_ms: Option<i64>,
    pub headers: OwnedHeaders,
    /// The value is null.
    pub null: bool,
    /// Bytes that it takes at the least, uncompressed.
    pub bytes: usize,
}

/// Renders a write. What cannot be rendered is refused.
pub(crate) fn render(
    write: &Write,
    config: &ProduceConfig,
    key_header: &str,
) -> Result<Record, Outcome> {
    let topic = text(write, &config.topic)?;
    if !is_topic(topic) {
        return Err(outcome(topic, &Answer::BadTopic));
    }
    let key = match &config.key {
        Some(template) => Some(text(write, template)?).filter(|key| !key.is_empty()),
        None => None,
    };
    let partition = match &config.partition {
        Some(template) => Some(partition(topic, text(write, template)?)?),
        None => None,
    };
    let (headers, headers_bytes) = headers(write, config, key_header)?;
    let body = write.body().len();
    let key_bytes = key.map_or(0, str::len);
    Ok(Record {
        topic: topic.to_owned(),
        key: key.map(str::to_owned),
        partition,
        time_unix_ms: match config.timestamp {
            RecordTime::Message => Some(write.time_unix_ms()).filter(|time| *time > 0),
            RecordTime::Now => None,
        },
        headers,
        null: config.empty_as_null && body == 0,
        bytes: OVERHEAD_BYTES + body + key_bytes + headers_bytes,
    })
}

fn text<'a>(write: &'a Write, template: &'a Template) -> Result<&'a str, Outcome> {
    write.text(template).map_err(Outcome::refused)
}

fn partition(topic: &str, text: &str) -> Result<i32, Outcome> {
    let number = text.trim().parse::<i32>().ok().filter(|n| *n >= 0);
    number.ok_or_else(|| outcome(topic, &Answer::BadPartition(text.to_owned())))
}

/// The headers and their bytes. The write key comes last, and nothing replaces it.
fn headers(
    write: &Write,
    config: &ProduceConfig,
    key_header: &str,
) -> Result<(OwnedHeaders, usize), Outcome> {
    let mut headers = OwnedHeaders::new();
    let mut bytes = 0;
    let mut add = |name: &str, value: &[u8]| {
        if !is_header_name(name) {
            let what = format!("`{}` is not a header name", name.escape_debug());
            return Err(Outcome::refused(("header", what)));
        }
        bytes += name.len() + value.len();
        let header = Header {
            key: name,
            value: Some(value),
        };
        headers = std::mem::take(&mut headers).insert(header);
        Ok(())
    };
    let set = |name: &str| {
        config
            .headers
            .keys()
            .any(|own| own.eq_ignore_ascii_case(name))
    };
    let mut typed = set(CONTENT_TYPE);
    for (name, value) in write.headers() {
        if forwards(config, name, key_header) && !set(name) {
            add(name, value)?;
            typed |= name.eq_ignore_ascii_case(CONTENT_TYPE);
        }
    }
    if let Some(content_type) = write.content_type().filter(|_| !typed) {
        add(CONTENT_TYPE, content_type.as_bytes())?;
    }
    for (name, template) in &config.headers {
        if !name.eq_ignore_ascii_case(key_header) {
            let value = text(write, template)?;
            add(name, value.as_bytes())?;
        }
    }
    add(key_header, write.key().to_string().as_bytes())?;
    Ok((headers, bytes))
}

fn forwards(config: &ProduceConfig, name: &str, key_header: &str) -> bool {
    let mut wanted = config.forward_headers.iter();
    !name.eq_ignore_ascii_case(key_header)
        && wanted.any(|want| want == "*" || want.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use consign_plugin::testing::{TestWrite, batch};
    use rdkafka::message::Headers as _;
    use serde_json::{Value, json};

    fn rendered(write: TestWrite, config: Value) -> Result<Record, Outcome> {
        let config: ProduceConfig = serde_json::from_value(config).unwrap();
        let batch = batch([write]);
        render(&batch.writes()[0], &config, "consign.write-key")
    }

    fn header_list(record: &Record) -> Vec<(String, Vec<u8>)> {
        record
            .headers
            .iter()
            .map(|h| (h.key.to_owned(), h.value.unwrap_or_default().to_vec()))
            .collect()
    }

    #[test]
    fn headers_key_and_time_are_the_writes_and_the_write_key_comes_last() {
        let write = TestWrite::new("x")
            .content_type("text/plain")
            .header("A", "1")
            .header("b", vec![0xff])
            .header("Consign.Write-Key", "forged")
            .time_unix_ms(1_700_000_000_000)
            .template(0, "customer 7");
        let config = json!({
            "topic": "t", "key": { "$template": 0 }, "forward_headers": ["*"],
            "headers": { "region": "eu", "a": "own" },
        });
        let record = rendered(write, config).unwrap();
        assert_eq!(record.key.as_deref(), Some("customer 7"));
        assert_eq!(record.time_unix_ms, Some(1_700_000_000_000));
        let key = format!("{:032x}", 1);
        assert_eq!(
            header_list(&record),
            [
                ("b".to_owned(), vec![0xff]),
                ("content-type".to_owned(), b"text/plain".to_vec()),
                ("a".to_owned(), b"own".to_vec()),
                ("region".to_owned(), b"eu".to_vec()),
                ("consign.write-key".to_owned(), key.into_bytes()),
            ]
        );
    }

    #[test]
    fn an_empty_body_is_null_only_where_that_is_asked_for() {
        let empty = || TestWrite::new("");
        assert!(!rendered(empty(), json!({ "topic": "t" })).unwrap().null);
        let asked = json!({ "topic": "t", "empty_as_null": true });
        assert!(rendered(empty(), asked.clone()).unwrap().null);
        assert!(!rendered(TestWrite::new("x"), asked).unwrap().null);
    }

    #[test]
    fn an_empty_key_is_none_and_a_bad_topic_partition_or_header_is_refused() {
        let slot = json!({ "$template": 0 });
        let keyless = rendered(
            TestWrite::new("x").template(0, ""),
            json!({ "topic": "t", "key": slot }),
        );
        assert_eq!(keyless.unwrap().key, None);
        let at = |text: &str| {
            rendered(
                TestWrite::new("x").template(0, text),
                json!({ "topic": "t", "partition": slot }),
            )
        };
        assert_eq!(at("3").unwrap().partition, Some(3));
        for text in ["", "-1", "x", "1.5", "99999999999"] {
            assert_eq!(at(text).unwrap_err().code(), "partition", "{text:?}");
        }
        let to = |text: &str| {
            rendered(
                TestWrite::new("x").template(0, text),
                json!({ "topic": slot }),
            )
        };
        for text in ["", "a b", "..", "a/b"] {
            assert_eq!(to(text).unwrap_err().code(), "topic", "{text:?}");
        }
        let named = rendered(
            TestWrite::new("x").header("a\0b", "1"),
            json!({ "topic": "t", "forward_headers": ["*"] }),
        );
        assert_eq!(named.unwrap_err().code(), "header");
    }
}
