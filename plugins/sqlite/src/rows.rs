//! From a write's body to the rows it inserts: which columns, and which SQLite value for each.
//!
//! Nothing a number says is lost: an integer that fits 64 bits becomes INTEGER, a decimal that a
//! double repeats digit for digit becomes REAL, everything else (`1.10`, `1e400`, 20 digits) stays
//! TEXT as it was written, and the column's own type decides what it makes of it.

use consign_plugin::rows::{self, Fields, Limits};
use rusqlite::types::Value;
use serde_json::value::RawValue;

/// Rows of one write. A longer array is refused: it would hold the database's only write lock for
/// seconds, and its rows belong into several messages.
pub const MAX_ROWS: usize = 100_000;

/// SQLite's own limit on the columns of a table.
const MAX_FIELDS: usize = 2_000;

const LIMITS: Limits = Limits {
    rows: MAX_ROWS,
    fields: MAX_FIELDS,
};

/// A double holds this many decimal digits exactly, and SQLite prints them all.
const EXACT_DIGITS: usize = 15;

/// One row: a value per named column.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// Column names as the body or the configuration spells them.
    pub columns: Vec<String>,
    /// One value per column.
    pub values: Vec<Value>,
}

impl Row {
    /// Adds a column.
    pub fn push(&mut self, column: impl Into<String>, value: Value) {
        self.columns.push(column.into());
        self.values.push(value);
    }
}

/// The rows of a JSON object (one) or an array of objects (one each).
/// The error is a sentence about the body.
pub fn from_json(body: &[u8]) -> Result<Vec<Row>, String> {
    let rows = rows::from_json(body, LIMITS)?;
    rows.into_iter().map(row).collect()
}

/// A whole body as one value: TEXT when it is UTF-8, else BLOB.
pub fn whole(body: &[u8]) -> Value {
    match std::str::from_utf8(body) {
        Ok(text) => Value::Text(text.to_owned()),
        Err(_) => Value::Blob(body.to_vec()),
    }
}

fn row(fields: Fields<'_>) -> Result<Row, String> {
    let mut row = Row::default();
    for (name, raw) in fields {
        if row.columns.iter().any(|c| c.eq_ignore_ascii_case(&name)) {
            return Err(format!(
                "field `{name}` appears twice in one object (column names ignore case)"
            ));
        }
        let value = value(raw).map_err(|error| format!("field `{name}`: {error}"))?;
        row.push(name, value);
    }
    Ok(row)
}

fn value(raw: &RawValue) -> Result<Value, serde_json::Error> {
    let text = raw.get();
    Ok(match text.as_bytes().first() {
        Some(b'"') => Value::Text(serde_json::from_str(text)?),
        Some(b'{' | b'[') => Value::Text(text.to_owned()),
        Some(b't') => Value::Integer(1),
        Some(b'f') => Value::Integer(0),
        Some(b'n') | None => Value::Null,
        Some(_) => number(text),
    })
}

fn number(literal: &str) -> Value {
    if literal != "-0"
        && let Ok(integer) = literal.parse::<i64>()
    {
        return Value::Integer(integer);
    }
    let digits = literal.bytes().filter(u8::is_ascii_digit).count();
    match literal.parse::<f64>() {
        Ok(real) if digits <= EXACT_DIGITS && format!("{real:?}") == literal => Value::Real(real),
        _ => Value::Text(literal.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(json: &str) -> Value {
        let rows = from_json(format!("{{\"v\":{json}}}").as_bytes()).unwrap();
        rows[0].values[0].clone()
    }

    #[test]
    fn numbers_keep_every_digit() {
        assert_eq!(one("1"), Value::Integer(1));
        assert_eq!(one("-9223372036854775808"), Value::Integer(i64::MIN));
        assert_eq!(
            one("9223372036854775808"),
            Value::Text("9223372036854775808".into())
        );
        assert_eq!(one("1.5"), Value::Real(1.5));
        assert_eq!(one("-0.25"), Value::Real(-0.25));
        for exact in ["1.10", "1e400", "1E2", "0.1234567890123456", "-0", "1.0e5"] {
            assert_eq!(one(exact), Value::Text(exact.into()), "{exact}");
        }
    }

    #[test]
    fn other_values_become_what_sqlite_has_for_them() {
        assert_eq!(one("true"), Value::Integer(1));
        assert_eq!(one("false"), Value::Integer(0));
        assert_eq!(one("null"), Value::Null);
        assert_eq!(one(r#""a\u00e9\n""#), Value::Text("aé\n".into()));
        assert_eq!(
            one(r#"{ "a": [1.10] }"#),
            Value::Text(r#"{ "a": [1.10] }"#.into())
        );
    }

    #[test]
    fn arrays_are_several_rows_and_an_empty_one_is_none() {
        let rows = from_json(b" [{\"a\":1},{\"b\":2}]").unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1].columns, ["b"]);
        assert!(from_json(b"[]").unwrap().is_empty());
    }

    #[test]
    fn bodies_that_are_no_rows_say_why() {
        for (body, part) in [
            (&b""[..], "empty"),
            (b"  \n", "empty"),
            (b"7", "not a JSON object"),
            (b"[1]", "not a JSON object"),
            (b"{\"a\":1", "not a JSON object"),
            (b"{\"a\":1} x", "not a JSON object"),
            (b"{\"a\":\"\xff\"}", "not a JSON object"),
            (b"{\"a\":1,\"A\":2}", "twice"),
            (b"{\"a\":\"\\ud800\"}", "field `a`"),
        ] {
            let error = from_json(body).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(500), "]".repeat(500));
        assert_eq!(
            from_json(deep.as_bytes()).unwrap().len(),
            1,
            "kept as its text"
        );
    }

    #[test]
    fn more_rows_than_the_limit_are_refused() {
        let body = format!("[{}{{}}]", "{},".repeat(MAX_ROWS));
        assert!(from_json(body.as_bytes()).unwrap_err().contains("at most"));
    }

    #[test]
    fn more_fields_than_a_table_has_columns_are_refused() {
        let fields: Vec<_> = (0..=MAX_FIELDS).map(|i| format!("\"f{i}\":0")).collect();
        let body = format!("{{{}}}", fields.join(","));
        assert!(from_json(body.as_bytes()).unwrap_err().contains("columns"));
    }

    #[test]
    fn a_whole_body_is_text_or_blob() {
        assert_eq!(whole("ü".as_bytes()), Value::Text("ü".into()));
        assert_eq!(whole(b"\xff\x00"), Value::Blob(vec![255, 0]));
        assert_eq!(whole(b""), Value::Text(String::new()));
    }
}
