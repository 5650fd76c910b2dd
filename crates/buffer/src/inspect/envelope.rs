//! The JSON envelope of one write, as an export writes it and an import reads it.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::api::{LaneId, MAX_CHILD_DEPTH, NewWrite, Pending, WriteState};

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A write read from an envelope.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) write: NewWrite,
    pub(super) state: WriteState,
}

impl Parsed {
    /// Whether it was in a sealed batch that may have been applied.
    pub(super) fn was_sealed_and_maybe(&self) -> bool {
        self.state.first_maybe_unix_ms.is_some() && self.state.sealed != 0
    }
}

/// One write as one line of JSON. `lanes` are the names by number.
pub(super) fn line(lane: &str, write: &Pending, children: &[NewWrite], lanes: &[&str]) -> String {
    let mut object = Map::new();
    object.insert("lane".into(), json!(lane));
    object.insert("seq".into(), json!(write.seq));
    object.insert("key".into(), json!(hex(&write.key)));
    object.insert("order".into(), json!(write.order));
    object.insert("created_unix_ms".into(), json!(write.created_unix_ms));
    object.insert("expires_unix_ms".into(), json!(write.expires_unix_ms));
    if let Some(since) = write.maybe_since_unix_ms {
        object.insert("maybe_since_unix_ms".into(), json!(since));
    }
    let state = write.state;
    if state != WriteState::default() {
        object.insert("attempts".into(), json!(state.attempts));
        object.insert("spent_resends".into(), json!(state.spent_resends));
        object.insert("open_gate_age_ms".into(), json!(state.open_gate_age_ms));
        object.insert(
            "first_attempt_unix_ms".into(),
            json!(state.first_attempt_unix_ms),
        );
        object.insert("flags".into(), json!(state.flags));
        object.insert("sealed".into(), json!(state.sealed));
    }
    object.insert("body".into(), json!(encode(&write.body)));
    let children = children.iter().map(|child| child_value(child, lanes));
    object.insert("children".into(), Value::Array(children.collect()));
    Value::Object(object).to_string()
}

fn child_value(write: &NewWrite, lanes: &[&str]) -> Value {
    let children = write.children.iter().map(|child| child_value(child, lanes));
    json!({
        "lane": lanes.get(write.lane.0 as usize),
        "key": hex(&write.key),
        "order": write.order,
        "created_unix_ms": write.created_unix_ms,
        "expires_unix_ms": write.expires_unix_ms,
        "body": encode(&write.body),
        "children": children.collect::<Vec<_>>(),
    })
}

/// The lane a line is for.
pub(super) fn lane(text: &str) -> Result<String, String> {
    #[derive(serde::Deserialize)]
    struct Lane {
        lane: String,
    }
    let found: Result<Lane, _> = serde_json::from_str(text);
    found.map(|l| l.lane).map_err(|e| not_a_line(&e))
}

fn not_a_line(why: &serde_json::Error) -> String {
    format!("{why}; it is not a line of `consign buffer export`")
}

/// Reads one line; the error says what is wrong with it.
pub(super) fn parse(text: &str, lanes: &[(LaneId, String)]) -> Result<Parsed, String> {
    let value: Value = serde_json::from_str(text).map_err(|e| not_a_line(&e))?;
    let write = write(&value, lanes, 0)?;
    let number = |name: &str| match value.get(name) {
        None | Some(Value::Null) => Ok(0),
        Some(found) => found.as_u64().ok_or(format!("{name:?} must be a number")),
    };
    let small = |name: &str| {
        u32::try_from(number(name)?).map_err(|_| format!("{name:?} must be below 2^32"))
    };
    let maybe = number("maybe_since_unix_ms")?;
    let state = WriteState {
        attempts: small("attempts")?,
        first_maybe_unix_ms: (maybe != 0).then_some(maybe),
        spent_resends: small("spent_resends")?,
        open_gate_age_ms: number("open_gate_age_ms")?,
        first_attempt_unix_ms: number("first_attempt_unix_ms")?,
        flags: small("flags")?,
        sealed: number("sealed")?,
    };
    Ok(Parsed { write, state })
}

fn write(value: &Value, lanes: &[(LaneId, String)], depth: usize) -> Result<NewWrite, String> {
    if depth > MAX_CHILD_DEPTH {
        return Err("dependents are nested too deeply".into());
    }
    let text = |name: &str| {
        let found = value.get(name).and_then(Value::as_str);
        found.ok_or(format!("{name:?} must be a string"))
    };
    let number = |name: &str| {
        let found = value.get(name).and_then(Value::as_u64);
        found.ok_or(format!("{name:?} must be a number"))
    };
    let id = text("lane")?;
    let lane = lanes
        .iter()
        .find(|(_, known)| known == id)
        .ok_or_else(|| no_such_lane(id, lanes))?
        .0;
    let key = unhex(text("key")?).ok_or("\"key\" must be 32 hex digits")?;
    let body = decode(text("body")?).ok_or("\"body\" must be base64")?;
    let expires_unix_ms = match value.get("expires_unix_ms") {
        None | Some(Value::Null) => None,
        Some(_) => Some(number("expires_unix_ms")?),
    };
    let children = match value.get("children") {
        None => &[][..],
        Some(found) => found.as_array().ok_or("\"children\" must be a list")?,
    };
    Ok(NewWrite {
        lane,
        key,
        order: number("order")?,
        body: Bytes::from(body),
        created_unix_ms: number("created_unix_ms")?,
        expires_unix_ms,
        children: children
            .iter()
            .map(|child| write(child, lanes, depth + 1))
            .collect::<Result<_, _>>()?,
    })
}

fn no_such_lane(id: &str, lanes: &[(LaneId, String)]) -> String {
    let known: Vec<&str> = lanes.iter().map(|(_, known)| known.as_str()).collect();
    match known.is_empty() {
        true => format!("there is no lane {id:?}: no send of the configuration is buffered"),
        false => format!("there is no lane {id:?}; there are {}", known.join(", ")),
    }
}

fn hex(key: &[u8; 16]) -> String {
    key.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    Some(u128::from_str_radix(text, 16).ok()?.to_be_bytes())
}

fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0u8; 3];
        for (to, from) in group.iter_mut().zip(chunk) {
            *to = *from;
        }
        let [a, b, c] = group;
        let bits = u32::from(a) << 16 | u32::from(b) << 8 | u32::from(c);
        for i in 0..4usize {
            let at = (bits >> (18 - 6 * i)) & 63;
            let digit = BASE64.get(at as usize).copied().unwrap_or(b'=');
            out.push(char::from(if i <= chunk.len() { digit } else { b'=' }));
        }
    }
    out
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut have) = (0u32, 0);
    for digit in digits.bytes() {
        let at = BASE64.iter().position(|d| *d == digit)?;
        bits = bits << 6 | u32::try_from(at).ok()?;
        have += 6;
        if have >= 8 {
            have -= 8;
            out.push(u8::try_from(bits >> have & 255).ok()?);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_every_length_is_read_back() {
        assert_eq!(encode(b"any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw==");
        for n in 0..70usize {
            let bytes: Vec<u8> = (0..n).map(|i| (i * 37) as u8).collect();
            assert_eq!(decode(&encode(&bytes)).unwrap(), bytes);
        }
        assert!(decode("abc").is_none() && decode("a===").is_none() && decode("ab!=").is_none());
    }
}
