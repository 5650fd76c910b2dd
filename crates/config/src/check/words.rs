//! What a schema expects, in the words a person reads, and the small questions asked of it.

use super::{Checker, branches, list};
use crate::nearest::one_of;
use crate::{DURATION_FORMAT, SIZE_FORMAT};
use regex::Regex;
use serde_json::Value;

impl<'s> Checker<'s> {
    /// What a schema expects, in words.
    pub(super) fn described(&self, schema: &'s Value) -> String {
        if let Some(branches) = branches(schema) {
            return self.described_branches(branches);
        }
        let all: Vec<String> = words(schema).map(|word| format!("`{word}`")).collect();
        if let Some((last, rest)) = all.split_last() {
            return match rest {
                [] => last.clone(),
                _ => format!("{} or {last}", rest.join(", ")),
            };
        }
        if let Some(constant) = schema.get("const") {
            return format!("`{constant}`");
        }
        let format = schema.get("format").and_then(Value::as_str);
        let names: Vec<&str> = match schema.get("type") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => vec![],
        };
        let described: Vec<String> = names
            .iter()
            .filter(|name| **name != "null" || names.len() == 1)
            .map(|name| match *name {
                "string" => match format {
                    Some(DURATION_FORMAT) => "a duration such as 30s".to_owned(),
                    Some(SIZE_FORMAT) => "a size such as 16MiB".to_owned(),
                    _ => match example(schema) {
                        Some(example) => format!("a text such as `{example}`"),
                        None => "a text".to_owned(),
                    },
                },
                "integer" => format!("a whole number{}", limits(schema)),
                "number" => format!("a number{}", limits(schema)),
                "boolean" => "true or false".to_owned(),
                "array" => "a list".to_owned(),
                "object" => match list(schema, "required") {
                    [] => "a mapping".to_owned(),
                    keys => format!(
                        "a mapping with {}",
                        one_of(keys.iter().filter_map(Value::as_str)).replace(" or ", " and ")
                    ),
                },
                other => other.to_owned(),
            })
            .collect();
        match described.as_slice() {
            [] => "something else".to_owned(),
            _ => described.join(" or "),
        }
    }

    pub(super) fn described_branches(&self, branches: &'s [Value]) -> String {
        let mut described: Vec<String> = Vec::new();
        for branch in branches {
            let branch = self.followed(branch);
            if branch.get("type").and_then(Value::as_str) == Some("null") {
                continue;
            }
            let one = self.described(branch);
            if !described.contains(&one) {
                described.push(one);
            }
        }
        match described.split_last() {
            None => "nothing".to_owned(),
            Some((last, [])) => last.clone(),
            Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        }
    }
}

/// The words a schema allows: its constant, or its enum.
pub(super) fn words(schema: &Value) -> impl Iterator<Item = &str> {
    word_of(schema)
        .into_iter()
        .chain(list(schema, "enum").iter().filter_map(Value::as_str))
}

pub(super) fn word_of(schema: &Value) -> Option<&str> {
    schema.get("const").and_then(Value::as_str)
}

pub(super) fn is_word(schema: &Value) -> bool {
    words(schema).next().is_some()
}

pub(super) fn is_unit(schema: &Value) -> bool {
    matches!(
        schema.get("format").and_then(Value::as_str),
        Some(DURATION_FORMAT | SIZE_FORMAT)
    )
}

/// The schema's first example.
pub(super) fn example(schema: &Value) -> Option<&str> {
    list(schema, "examples").first().and_then(Value::as_str)
}

pub(super) fn number_at(schema: &Value, key: &str) -> Option<f64> {
    schema.get(key).and_then(Value::as_f64)
}

/// The lowest and highest number allowed: as said, or as the integer's width allows.
pub(super) fn range(schema: &Value) -> (Option<f64>, Option<f64>) {
    let width = match schema.get("format").and_then(Value::as_str) {
        Some("uint8") => (Some(0.0), Some(f64::from(u8::MAX))),
        Some("uint16") => (Some(0.0), Some(f64::from(u16::MAX))),
        Some("uint32") => (Some(0.0), Some(f64::from(u32::MAX))),
        Some("uint64" | "uint") => (Some(0.0), None),
        Some("int8") => (Some(f64::from(i8::MIN)), Some(f64::from(i8::MAX))),
        Some("int16") => (Some(f64::from(i16::MIN)), Some(f64::from(i16::MAX))),
        Some("int32") => (Some(f64::from(i32::MIN)), Some(f64::from(i32::MAX))),
        _ => (None, None),
    };
    (
        number_at(schema, "minimum").or(width.0),
        number_at(schema, "maximum").or(width.1),
    )
}

pub(super) fn limits(schema: &Value) -> String {
    match range(schema) {
        (Some(low), Some(high)) => format!(" from {low} to {high}"),
        (Some(low), None) => format!(" of at least {low}"),
        (None, Some(high)) => format!(" of at most {high}"),
        (None, None) => String::new(),
    }
}

pub(super) fn wrong_pattern(text: &str, schema: &Value) -> Option<String> {
    let pattern = schema.get("pattern").and_then(Value::as_str)?;
    let regex = Regex::new(pattern).ok()?;
    if regex.is_match(text) {
        return None;
    }
    Some(match example(schema) {
        Some(example) => format!("expected a text such as `{example}`, got `{text}`"),
        None => format!("`{text}` does not match the pattern {pattern}"),
    })
}
