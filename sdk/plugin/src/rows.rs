//! Rows of a body, for connectors that write tables: a JSON object is one row, an array of objects is
//! a row each. Values stay as they were written, so that a connector decides about each by the type
//! of its column and no digit of a number is lost on the way.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// The fields of one JSON object, in order, repeated names included, values as written.
#[derive(Debug)]
pub struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'a> IntoIterator for Fields<'a> {
    type Item = (String, &'a RawValue);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// How large a body a connector takes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Rows of one write.
    pub rows: usize,
    /// Fields of one row.
    pub fields: usize,
}

/// The rows of a body.
///
/// # Errors
/// It is neither an object nor an array of objects, or it is larger than the limits. A sentence about
/// the body: answer `Outcome::refused(("body", sentence))`.
pub fn from_json(body: &[u8], limits: Limits) -> Result<Vec<Fields<'_>>, String> {
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    let rows: Vec<Fields<'_>> = match first {
        Some(b'[') => serde_json::from_slice(body),
        Some(_) => serde_json::from_slice(body).map(|object| vec![object]),
        None => return Err("the body is empty; a row comes from a JSON object".into()),
    }
    .map_err(|error| format!("the body is not a JSON object or an array of objects: {error}"))?;
    if rows.len() > limits.rows {
        return Err(format!(
            "the array has {} rows; one write takes at most {}",
            rows.len(),
            limits.rows
        ));
    }
    if let Some(wide) = rows.iter().find(|row| row.0.len() > limits.fields) {
        return Err(format!(
            "an object has {} fields; a table has at most {} columns",
            wide.0.len(),
            limits.fields
        ));
    }
    Ok(rows)
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Vec<(String, &'de RawValue)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Object).map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { rows: 2, fields: 2 };

    fn read(body: &str) -> Result<Vec<Vec<(String, String)>>, String> {
        let rows = from_json(body.as_bytes(), LIMITS)?;
        let fields = |row: Fields<'_>| {
            let pairs = row.into_iter();
            pairs.map(|(n, v)| (n, v.get().to_owned())).collect()
        };
        Ok(rows.into_iter().map(fields).collect())
    }

    #[test]
    fn values_stay_as_they_were_written() {
        let rows = read(r#" [{"a": 1.10, "a": {"b" : 1e400}}, {}]"#).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0][0], ("a".into(), "1.10".into()));
        assert_eq!(rows[0][1], ("a".into(), r#"{"b" : 1e400}"#.into()));
        assert!(rows[1].is_empty());
    }

    #[test]
    fn what_is_no_row_is_told() {
        for (body, part) in [
            ("", "empty"),
            (" \n", "empty"),
            ("7", "not a JSON object"),
            ("[1]", "not a JSON object"),
            ("[{}, {}, {}]", "at most 2"),
            (r#"{"a": 1, "b": 2, "c": 3}"#, "at most 2 columns"),
            (r#"{"a": 1"#, "not a JSON object"),
        ] {
            let error = read(body).unwrap_err();
            assert!(error.contains(part), "{body}: {error}");
        }
    }
}
