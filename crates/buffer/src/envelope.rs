//! The JSON envelope of one write, as an export writes it and an import reads it.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::api::{LaneId, MAX_CHILD_DEPTH, NewWrite, WriteState};
use crate::write::{WriteView, parse_write};

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A write read from an envelope.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) write: NewWrite,
    pub(crate) maybe_since_unix_ms: Option<u64>,
    pub(crate) attempts: u32,
}

/// One write as one line of JSON.
pub(crate) fn line(
    view: &WriteView<'_>,
    lanes: &[&str],
    pending: Option<(u64, Option<u64>, WriteState)>,
) -> String {
    value(view, lanes, pending).to_string()
}

fn value(
    view: &WriteView<'_>,
    lanes: &[&str],
    pending: Option<(u64, Option<u64>, WriteState)>,
) -> Value {
    let mut object = Map::new();
    object.insert("lane".into(), json!(lanes.get(view.lane as usize)));
    if let Some((seq, maybe, state)) = pending {
        object.insert("seq".into(), json!(seq));
        object.insert("maybe_since_unix_ms".into(), json!(maybe));
        object.insert("attempts".into(), json!(state.attempts));
    }
    object.insert("key".into(), json!(hex(&view.key)));
    object.insert("order".into(), json!(view.order));
    object.insert("created_unix_ms".into(), json!(view.created_unix_ms));
    object.insert("expires_unix_ms".into(), json!(view.expires_unix_ms));
    object.insert("body".into(), json!(encode(view.body)));
    let children: Vec<Value> = view
        .children
        .iter()
        .filter_map(|enc| Some(value(&parse_write(enc)?, lanes, None)))
        .collect();
    object.insert("children".into(), Value::Array(children));
    Value::Object(object)
}

/// Reads one line; the error says what is wrong with it.
pub(crate) fn parse(text: &str, lanes: &[(LaneId, String)]) -> Result<Parsed, String> {
    let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let write = write(&value, lanes, 0)?;
    let attempts = value
        .get("attempts")
        .and_then(Value::as_u64)
        .and_then(|n| u32::try_from(n).ok())
        .unwrap_or(0);
    let maybe_since_unix_ms = value.get("maybe_since_unix_ms").and_then(Value::as_u64);
    Ok(Parsed {
        write,
        maybe_since_unix_ms,
        attempts,
    })
}

fn write(value: &Value, lanes: &[(LaneId, String)], depth: usize) -> Result<NewWrite, String> {
    if depth > MAX_CHILD_DEPTH {
        return Err("dependents are nested too deeply".into());
    }
    let text = |name: &str| {
        value
            .get(name)
            .and_then(Value::as_str)
            .ok_or(format!("{name:?} must be a string"))
    };
    let number = |name: &str| {
        value
            .get(name)
            .and_then(Value::as_u64)
            .ok_or(format!("{name:?} must be a number"))
    };
    let id = text("lane")?;
    let lane = lanes
        .iter()
        .find(|(_, known)| known == id)
        .ok_or(format!("there is no lane {id:?}"))?
        .0;
    let key = unhex(text("key")?).ok_or("\"key\" must be 32 hex digits")?;
    let body = decode(text("body")?).ok_or("\"body\" must be base64")?;
    let mut children = Vec::new();
    for child in value
        .get("children")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
    {
        children.push(write(child, lanes, depth + 1)?);
    }
    Ok(NewWrite {
        lane,
        key,
        order: number("order")?,
        body: Bytes::from(body),
        created_unix_ms: number("created_unix_ms")?,
        expires_unix_ms: value.get("expires_unix_ms").and_then(Value::as_u64),
        children,
    })
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
