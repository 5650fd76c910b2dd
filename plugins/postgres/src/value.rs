//! Values of a row, as the text that PostgreSQL's own input functions read.
//!
//! Every parameter is sent in text form with its type left to the server, which takes the column's. So a
//! number is never a float on its way, and whatever type a column has, its own reader decides.

use bytes::BytesMut;
use consign_plugin::rows::{self, Fields, Limits};
use serde_json::value::RawValue;
use std::error::Error;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};

/// Rows of one write. A longer array is refused: it would hold its locks for seconds, and its rows
/// belong into several messages.
pub const MAX_ROWS: usize = 10_000;

/// PostgreSQL's own limit on the columns of a table.
const MAX_FIELDS: usize = 1_600;

/// Arrays have at most so many dimensions (MAXDIM of the server).
const MAX_DIMENSIONS: usize = 6;

const LIMITS: Limits = Limits {
    rows: MAX_ROWS,
    fields: MAX_FIELDS,
};

/// A value before its column's type is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A JSON value as it is written in the body.
    Json(String),
    /// Text of a template, or the write key.
    Text(String),
    /// A whole body.
    Bytes(Vec<u8>),
}

/// One row: a value per named column.
pub type Row = Vec<(String, Value)>;

/// What a column's type makes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `json` and `jsonb`.
    Json,
    /// `bytea`.
    Bytes,
    /// An array of these.
    Array(Element),
    /// Everything else: the type's own reader decides.
    Other,
}

/// What the elements of an array are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// `json` and `jsonb`.
    Json,
    /// `bytea`.
    Bytes,
    /// Everything else.
    Other,
}

impl Kind {
    /// The kind of the type with this name, and of its elements where it is an array.
    #[must_use]
    pub fn of(name: &str, element: Option<&str>) -> Self {
        match element {
            Some(element) => Self::Array(Element::of(element)),
            None => Element::of(name).kind(),
        }
    }
}

impl Element {
    fn of(name: &str) -> Self {
        match name {
            "json" | "jsonb" => Self::Json,
            "bytea" => Self::Bytes,
            _ => Self::Other,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Json => Kind::Json,
            Self::Bytes => Kind::Bytes,
            Self::Other => Kind::Other,
        }
    }
}

/// The rows of a body. The error is a sentence about it.
pub fn rows_of(body: &[u8]) -> Result<Vec<Row>, String> {
    let rows = rows::from_json(body, LIMITS)?;
    rows.into_iter().map(row).collect()
}

fn row(fields: Fields<'_>) -> Result<Row, String> {
    let mut row = Row::new();
    for (name, raw) in fields {
        // Column names are case-sensitive once quoted, so only the same spelling is the same column.
        if row.iter().any(|(known, _)| *known == name) {
            return Err(format!("field `{name}` appears twice in one object"));
        }
        row.push((name, Value::Json(raw.get().to_owned())));
    }
    Ok(row)
}

/// The text of a value for a column of this kind; `None` is NULL. The error is a sentence.
pub fn text(value: &Value, kind: Kind) -> Result<Option<String>, String> {
    match value {
        Value::Text(text) => Ok(Some(match kind {
            Kind::Bytes => bytes_of_text(text),
            _ => text.clone(),
        })),
        Value::Bytes(bytes) => match kind {
            Kind::Bytes => Ok(Some(hex(bytes))),
            _ => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text.to_owned())),
                Err(error) => Err(format!(
                    "the body is not UTF-8 ({error}); a `bytea` column takes it as it is"
                )),
            },
        },
        Value::Json(raw) => json(raw, kind),
    }
}

fn json(raw: &str, kind: Kind) -> Result<Option<String>, String> {
    match (raw.as_bytes().first(), kind) {
        (Some(b'n'), _) => Ok(None),
        (_, Kind::Json) => Ok(Some(raw.to_owned())),
        (Some(b'"'), kind) => {
            let text = string(raw)?;
            Ok(Some(match kind {
                Kind::Bytes => bytes_of_text(&text),
                _ => text,
            }))
        }
        (Some(b'['), Kind::Array(element)) => {
            let mut literal = String::new();
            array(raw, element, 1, &mut literal)?;
            Ok(Some(literal))
        }
        // Numbers and booleans as they are written, objects as their text.
        _ => Ok(Some(raw.to_owned())),
    }
}

fn string(raw: &str) -> Result<String, String> {
    serde_json::from_str(raw).map_err(|error| error.to_string())
}

/// An array literal, `{1,"two",NULL,{3}}`: each element quoted, so that its text means nothing else.
fn array(raw: &str, element: Element, depth: usize, out: &mut String) -> Result<(), String> {
    if depth > MAX_DIMENSIONS {
        return Err(format!("an array has at most {MAX_DIMENSIONS} dimensions"));
    }
    let items: Vec<&RawValue> = serde_json::from_str(raw).map_err(|error| error.to_string())?;
    out.push('{');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        let raw = item.get();
        // An array inside an array of json values is such a value, not another dimension.
        if raw.starts_with('[') && element != Element::Json {
            array(raw, element, depth + 1, out)?;
            continue;
        }
        match json(raw, element.kind())? {
            None => out.push_str("NULL"),
            Some(text) => quote(&text, out),
        }
    }
    out.push('}');
    Ok(())
}

fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

/// Text for a `bytea` column: its bytes, or the digits that follow `\x`, which the server reads.
fn bytes_of_text(text: &str) -> String {
    if text.starts_with("\\x") {
        text.to_owned()
    } else {
        hex(text.as_bytes())
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    let mut text = String::with_capacity(2 + bytes.len() * 2);
    text.push_str("\\x");
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.extend(DIGITS.get(usize::from(digit)));
        }
    }
    text
}

/// A parameter in text form, of whatever type the server takes it for.
#[derive(Debug)]
pub struct Parameter(pub Option<String>);

impl ToSql for Parameter {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match &self.0 {
            None => Ok(IsNull::Yes),
            Some(text) => {
                out.extend_from_slice(text.as_bytes());
                Ok(IsNull::No)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of_json(raw: &str, kind: Kind) -> Option<String> {
        text(&Value::Json(raw.to_owned()), kind).unwrap()
    }

    #[test]
    fn each_json_value_has_its_text_for_each_kind_of_column() {
        let array = Kind::Array(Element::Other);
        for (raw, kind, expected) in [
            ("1.10", Kind::Other, Some("1.10")),
            (
                "12345678901234567890.123456789",
                Kind::Other,
                Some("12345678901234567890.123456789"),
            ),
            ("true", Kind::Other, Some("true")),
            ("null", Kind::Other, None),
            ("null", Kind::Json, None),
            (r#""a\u00e9""#, Kind::Other, Some("aé")),
            (r#""a""#, Kind::Json, Some(r#""a""#)),
            (r#"{ "a": 1.10 }"#, Kind::Json, Some(r#"{ "a": 1.10 }"#)),
            (r#"{"a":1}"#, Kind::Other, Some(r#"{"a":1}"#)),
            ("[1, 2]", Kind::Json, Some("[1, 2]")),
            ("[1, 2]", Kind::Other, Some("[1, 2]")),
            ("[1, 2.50, null]", array, Some(r#"{"1","2.50",NULL}"#)),
            ("[]", array, Some("{}")),
            ("[[1], [2]]", array, Some(r#"{{"1"},{"2"}}"#)),
            (
                r#"["a\"b", "c\\d", "NULL", "", "{,}"]"#,
                array,
                Some(r#"{"a\"b","c\\d","NULL","","{,}"}"#),
            ),
            (
                r#"[[1], {"a": "b"}]"#,
                Kind::Array(Element::Json),
                Some(r#"{"[1]","{\"a\": \"b\"}"}"#),
            ),
            (
                r#"["ab"]"#,
                Kind::Array(Element::Bytes),
                Some(r#"{"\\x6162"}"#),
            ),
            (r#""{1,2}""#, array, Some("{1,2}")),
            (r#""ab""#, Kind::Bytes, Some("\\x6162")),
            (r#""\\xFF00""#, Kind::Bytes, Some("\\xFF00")),
            (r#""a\\b""#, Kind::Bytes, Some("\\x615c62")),
        ] {
            assert_eq!(of_json(raw, kind).as_deref(), expected, "{raw} {kind:?}");
        }
        let deep = format!("{}1{}", "[".repeat(7), "]".repeat(7));
        assert!(
            text(&Value::Json(deep), array)
                .unwrap_err()
                .contains("dimensions")
        );
    }

    #[test]
    fn a_body_fills_bytea_as_it_is_and_text_only_as_utf8() {
        let body = Value::Bytes(vec![0, 255, b'a']);
        assert_eq!(text(&body, Kind::Bytes).unwrap().unwrap(), "\\x00ff61");
        assert!(text(&body, Kind::Other).unwrap_err().contains("UTF-8"));
        let body = Value::Bytes("{\"ü\":1.10}".into());
        assert_eq!(text(&body, Kind::Json).unwrap().unwrap(), "{\"ü\":1.10}");
    }

    #[test]
    fn types_have_their_kinds() {
        assert_eq!(Kind::of("jsonb", None), Kind::Json);
        assert_eq!(Kind::of("bytea", None), Kind::Bytes);
        assert_eq!(Kind::of("numeric", None), Kind::Other);
        assert_eq!(Kind::of("_json", Some("json")), Kind::Array(Element::Json));
        assert_eq!(Kind::of("_text", Some("text")), Kind::Array(Element::Other));
    }

    /// Reads an array literal back, as the server's array reader does for quoted elements.
    fn read_back(literal: &str) -> Vec<String> {
        let mut items = Vec::new();
        let mut chars = literal[1..literal.len() - 1].chars();
        while let Some(c) = chars.next() {
            if c != '"' {
                continue;
            }
            let mut item = String::new();
            loop {
                match chars.next().unwrap() {
                    '\\' => item.push(chars.next().unwrap()),
                    '"' => break,
                    c => item.push(c),
                }
            }
            items.push(item);
        }
        items
    }

    proptest! {
        #[test]
        fn a_number_is_sent_as_it_is_written(whole in "-?(0|[1-9][0-9]{0,40})", part in "(\\.[0-9]{1,40})?", exponent in "([eE][+-]?[0-9]{1,3})?") {
            let number = format!("{whole}{part}{exponent}");
            let rows = rows_of(format!("{{\"v\":{number}}}").as_bytes()).unwrap();
            let (_, value) = &rows[0][0];
            prop_assert_eq!(text(value, Kind::Other).unwrap().unwrap(), number);
        }

        #[test]
        fn an_array_of_any_text_reads_back(items in proptest::collection::vec(".*", 0..6)) {
            let raw = serde_json::to_string(&items).unwrap();
            let literal = of_json(&raw, Kind::Array(Element::Other)).unwrap();
            prop_assert_eq!(read_back(&literal), items);
        }

        #[test]
        fn text_for_bytea_is_its_bytes(bytes in ".*") {
            prop_assume!(!bytes.starts_with("\\x"));
            let raw = serde_json::to_string(&bytes).unwrap();
            let hex = of_json(&raw, Kind::Bytes).unwrap();
            let digits: Vec<u8> = hex[2..].bytes().collect();
            let read: Vec<u8> = digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect();
            prop_assert_eq!(read, bytes.into_bytes());
        }
    }
}
