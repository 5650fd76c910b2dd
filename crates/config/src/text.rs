//! A string with its place, so that an error inside it (VRL, a pattern, a template) points into the
//! YAML, for block scalars too.

use crate::Place;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

/// A string from the configuration with its place. Equality looks at the string alone.
#[derive(Debug, Clone, Default)]
pub struct Text {
    value: String,
    place: Place,
    /// Where each source line of the value begins: byte offset in the value, line, column.
    lines: Vec<(usize, u32, u32)>,
}

impl Text {
    /// A string that begins at `place` and runs on in the same line.
    #[must_use]
    pub fn new(value: impl Into<String>, place: &Place) -> Self {
        Self {
            value: value.into(),
            place: place.clone(),
            lines: Vec::new(),
        }
    }

    pub(crate) fn with_lines(value: String, place: Place, lines: Vec<(usize, u32, u32)>) -> Self {
        Self {
            value,
            place,
            lines,
        }
    }

    /// The string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.value
    }

    /// Where it begins; for a quoted one this is the quote, for a block its first line.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The place of the byte at `offset` in the string. Exact for plain and literal block scalars
    /// and for quoted ones up to the first escape; otherwise the right line and a near column.
    #[must_use]
    pub fn place_at(&self, offset: usize) -> Place {
        let after = self.lines.partition_point(|(start, _, _)| *start <= offset);
        let Some((start, line, column)) = after.checked_sub(1).and_then(|i| self.lines.get(i))
        else {
            return self.place.clone();
        };
        let between = self.value.get(*start..offset).map_or(0, |between| {
            u32::try_from(between.chars().count()).unwrap_or(0)
        });
        self.place.at(*line, column.saturating_add(between))
    }

    /// A part of the string with its places.
    #[must_use]
    pub fn part(&self, range: std::ops::Range<usize>) -> Self {
        let value = self.value.get(range.clone()).unwrap_or_default().to_owned();
        let begin = self.place_at(range.start);
        let mut lines = vec![(0, begin.line, begin.column)];
        lines.extend(
            self.lines
                .iter()
                .filter(|(start, _, _)| *start > range.start && *start < range.end)
                .map(|(start, line, column)| (start - range.start, *line, *column)),
        );
        Self {
            value,
            place: begin,
            lines,
        }
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.value
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.value)
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl Eq for Text {}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.value == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.value == *other
    }
}

impl From<&str> for Text {
    fn from(value: &str) -> Self {
        Self::new(value, &Place::default())
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.value)
    }
}

impl JsonSchema for Text {
    fn schema_name() -> Cow<'static, str> {
        "Text".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }

    fn inline_schema() -> bool {
        true
    }
}
