//! JSON that can be changed in one place and stay byte for byte everywhere else.
//!
//! A body is scanned once into a flat list of [`Node`]s that hold spans of the text. Values for VRL
//! are made from it; when a transform has changed them, [`Document::emit`] writes every part that no
//! assignment reached as the text it was, white space, `1.10` and duplicate keys included, and only
//! what changed anew. VRL numbers are 64 bits wide. A number that does not fit (an integer beyond i64, a
//! decimal longer than a double) is a float in VRL; wherever that float stands in the result it is
//! written as the digits it came from. Where two such numbers share one float and one was moved,
//! there is no telling which it was: that is an error, never a guess.
//!
//! Limits: [`MAX_DEPTH`] levels, bodies under 4 GiB; what is beyond is not parsed and stays text.

mod scan;

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use consign_config::{
    Place, Text,
    yaml::{self, Data},
};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use vrl::path::OwnedSegment;
use vrl::value::{KeyString, ObjectMap, Value};

/// As deep as serde_json reads by default; keeps every recursion over values shallow.
pub const MAX_DEPTH: usize = 128;
/// Transforms may wrap what they read; beyond this a result is refused.
const MAX_EMIT_DEPTH: usize = 2 * MAX_DEPTH;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Null,
    True,
    False,
    Number,
    /// Without escapes: its text is its value.
    Plain,
    Escaped,
    Array,
    Object,
}

/// One value: its span in the text and the index after its subtree.
#[derive(Debug, Clone, Copy)]
struct Node {
    kind: Kind,
    start: u32,
    end: u32,
    next: u32,
}

/// A parsed body.
#[derive(Debug)]
pub(crate) struct Document {
    text: Bytes,
    nodes: Vec<Node>,
    /// Floats that stand for a number they do not equal: bits → the digits, `None` where two
    /// different numbers share them.
    inexact: OnceCell<HashMap<u64, Option<String>>>,
}

impl Document {
    /// Parses a body; `None` when it is not JSON (or beyond the limits).
    pub(crate) fn parse(text: &Bytes) -> Option<Self> {
        let valid = std::str::from_utf8(text).ok()?;
        u32::try_from(valid.len()).ok()?;
        Some(Self {
            nodes: scan::scan(valid)?,
            text: text.clone(),
            inexact: OnceCell::new(),
        })
    }

    /// Whether the whole body is an object or an array.
    pub(crate) fn is_container(&self) -> bool {
        matches!(self.kind(0), Kind::Array | Kind::Object)
    }

    /// Whether the whole body is one JSON string.
    pub(crate) fn is_string(&self) -> bool {
        matches!(self.kind(0), Kind::Plain | Kind::Escaped)
    }

    /// The value as VRL sees it.
    pub(crate) fn to_value(&self) -> Value {
        self.value(0)
    }

    /// The body as a tree that keeps every number as it was written, for comparing and showing.
    pub(crate) fn to_tree(&self, place: &Place) -> yaml::Node {
        self.tree(0, place)
    }

    fn tree(&self, index: u32, place: &Place) -> yaml::Node {
        let data = match self.kind(index) {
            Kind::Null => Data::Null,
            Kind::True => Data::Bool(true),
            Kind::False => Data::Bool(false),
            Kind::Number => Data::Number(self.raw_str(index).to_owned()),
            Kind::Plain | Kind::Escaped => Data::String(Text::new(self.string(index), place)),
            Kind::Array => Data::List(self.children(index).map(|i| self.tree(i, place)).collect()),
            Kind::Object => Data::Map(
                self.last_members(index)
                    .into_iter()
                    .map(|(key, value)| (Text::new(key, place), self.tree(value, place)))
                    .collect(),
            ),
        };
        yaml::Node {
            place: place.clone(),
            data,
        }
    }

    /// Writes `value` as JSON. What no path of `touched` reaches leaves as it came, and so does
    /// what is equal all the same.
    pub(crate) fn emit(
        &self,
        value: &Value,
        touched: &[Vec<OwnedSegment>],
    ) -> Result<Vec<u8>, String> {
        let mut out = Vec::with_capacity(self.text.len());
        let touched: Vec<&[OwnedSegment]> = touched.iter().map(Vec::as_slice).collect();
        self.emit_at(0, value, &mut out, &Touched::of(touched))?;
        Ok(out)
    }

    /// The digits a float stands for, if it stands for a number it does not equal.
    pub(crate) fn digits(&self, float: f64) -> Result<Option<&str>, String> {
        match self.inexact().get(&float.to_bits()) {
            None => Ok(None),
            Some(Some(digits)) => Ok(Some(digits)),
            Some(None) => Err(format!(
                "two numbers of the body are the same 64-bit number {float:?}, and which of them is meant cannot be told"
            )),
        }
    }

    fn kind(&self, index: u32) -> Kind {
        self.node(index).kind
    }

    fn node(&self, index: u32) -> Node {
        // Indices come from the scanner alone; a stray one reads as an empty null.
        self.nodes.get(index as usize).copied().unwrap_or(Node {
            kind: Kind::Null,
            start: 0,
            end: 0,
            next: u32::MAX,
        })
    }

    fn raw(&self, index: u32) -> &[u8] {
        let node = self.node(index);
        self.text
            .get(node.start as usize..node.end as usize)
            .unwrap_or_default()
    }

    fn raw_str(&self, index: u32) -> &str {
        std::str::from_utf8(self.raw(index)).unwrap_or_default()
    }

    fn children(&self, index: u32) -> impl Iterator<Item = u32> + '_ {
        let end = self.node(index).next;
        let mut at = index + 1;
        std::iter::from_fn(move || {
            let current = at;
            (current < end).then(|| {
                at = self.node(current).next;
                current
            })
        })
    }

    /// Members of an object: index of the key, index of the value.
    fn members(&self, index: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut children = self.children(index);
        std::iter::from_fn(move || Some((children.next()?, children.next()?)))
    }

    fn string(&self, index: u32) -> Cow<'_, str> {
        let raw = self.raw_str(index);
        let inner = raw.get(1..raw.len().saturating_sub(1)).unwrap_or_default();
        match self.kind(index) {
            Kind::Escaped => Cow::Owned(serde_json::from_str(raw).unwrap_or_default()),
            _ => Cow::Borrowed(inner),
        }
    }

    fn value(&self, index: u32) -> Value {
        match self.kind(index) {
            Kind::Null => Value::Null,
            Kind::True => Value::Boolean(true),
            Kind::False => Value::Boolean(false),
            Kind::Number => number(self.raw_str(index)),
            Kind::Plain => {
                // Shares the body's memory.
                let node = self.node(index);
                let range = node.start as usize + 1..(node.end as usize).saturating_sub(1);
                Value::Bytes(self.text.slice(range))
            }
            Kind::Escaped => Value::Bytes(Bytes::from(self.string(index).into_owned())),
            Kind::Array => Value::Array(self.children(index).map(|i| self.value(i)).collect()),
            Kind::Object => Value::Object(
                self.members(index)
                    .map(|(key, value)| (KeyString::from(self.string(key)), self.value(value)))
                    .collect::<ObjectMap>(),
            ),
        }
    }

    fn inexact(&self) -> &HashMap<u64, Option<String>> {
        self.inexact.get_or_init(|| {
            let floats: Vec<(u64, &str)> = (0u32..)
                .zip(&self.nodes)
                .filter(|(_, node)| node.kind == Kind::Number)
                .filter_map(|(i, _)| {
                    let text = self.raw_str(i);
                    match number(text) {
                        Value::Float(float) => Some((float.into_inner().to_bits(), text)),
                        _ => None,
                    }
                })
                .collect();
            let mut table: HashMap<u64, Option<String>> = HashMap::new();
            for (bits, text) in &floats {
                if !is_exact(text, f64::from_bits(*bits)) {
                    table.insert(*bits, Some((*text).to_owned()));
                }
            }
            if table.is_empty() {
                return table;
            }
            for (bits, text) in floats {
                if let Some(slot) = table.get_mut(&bits)
                    && slot
                        .as_deref()
                        .is_some_and(|known| decimal(known) != decimal(text))
                {
                    *slot = None;
                }
            }
            table
        })
    }

    fn is_same(&self, index: u32, value: &Value) -> bool {
        match (self.kind(index), value) {
            (Kind::Null, Value::Null)
            | (Kind::True, Value::Boolean(true))
            | (Kind::False, Value::Boolean(false)) => true,
            (Kind::Number, Value::Integer(_) | Value::Float(_)) => {
                match (number(self.raw_str(index)), value) {
                    (Value::Integer(a), Value::Integer(b)) => a == *b,
                    (Value::Float(a), Value::Float(b)) => {
                        a.into_inner().to_bits() == b.into_inner().to_bits()
                            // Where several numbers share a float, this need not be the same one.
                            && !matches!(self.inexact().get(&b.into_inner().to_bits()), Some(None))
                    }
                    _ => false,
                }
            }
            (Kind::Plain | Kind::Escaped, Value::Bytes(bytes)) => {
                self.string(index).as_bytes() == &bytes[..]
            }
            (Kind::Plain | Kind::Escaped, Value::String(text)) => self.string(index) == **text,
            (Kind::Array, Value::Array(items)) => {
                self.children(index).count() == items.len()
                    && self
                        .children(index)
                        .zip(items)
                        .all(|(i, v)| self.is_same(i, v))
            }
            (Kind::Object, Value::Object(map)) => {
                let last = self.last_members(index);
                last.len() == map.len()
                    && last
                        .iter()
                        .all(|(key, i)| map.get(key.as_ref()).is_some_and(|v| self.is_same(*i, v)))
            }
            _ => false,
        }
    }

    /// Where a key stands several times, the last value counts.
    fn last_members(&self, index: u32) -> BTreeMap<Cow<'_, str>, u32> {
        self.members(index)
            .map(|(key, value)| (self.string(key), value))
            .collect()
    }

    /// Writes `value` where the original had the node; true when it is the original.
    fn emit_at(
        &self,
        index: u32,
        value: &Value,
        out: &mut Vec<u8>,
        touched: &Touched<'_>,
    ) -> Result<bool, String> {
        if matches!(touched, Touched::Inside(paths) if paths.is_empty()) {
            out.extend_from_slice(self.raw(index));
            return Ok(true);
        }
        let begin = out.len();
        let same = match (self.kind(index), value) {
            (Kind::Array, Value::Array(items)) => {
                let mut same = true;
                let mut children = self.children(index);
                out.push(b'[');
                for (i, item) in items.iter().enumerate() {
                    separate(out, i);
                    same &= match children.next() {
                        Some(child) => self.emit_at(child, item, out, &touched.item(i))?,
                        None => {
                            write(item, Some(self), out, 0)?;
                            false
                        }
                    };
                }
                out.push(b']');
                same && children.next().is_none()
            }
            (Kind::Object, Value::Object(map)) => self.emit_object(index, map, out, touched)?,
            _ => {
                let same = self.is_same(index, value);
                if !same {
                    write(value, Some(self), out, 0)?;
                }
                same
            }
        };
        if same {
            out.truncate(begin);
            out.extend_from_slice(self.raw(index));
        }
        Ok(same)
    }

    fn emit_object(
        &self,
        index: u32,
        map: &ObjectMap,
        out: &mut Vec<u8>,
        touched: &Touched<'_>,
    ) -> Result<bool, String> {
        let last = self.last_members(index);
        let mut same = last.len() == map.len();
        let mut count = 0;
        out.push(b'{');
        for (key, child) in self.members(index) {
            let name = self.string(key);
            let Some(value) = map.get(name.as_ref()) else {
                same = false;
                continue;
            };
            let inside = touched.member(&name);
            let last_one = last.get(name.as_ref()).copied().unwrap_or(child);
            if last_one != child && !(inside.is_untouched() || self.is_same(last_one, value)) {
                // An earlier one of several goes when the one that counts was changed.
                same = false;
                continue;
            }
            separate(out, count);
            count += 1;
            out.extend_from_slice(self.raw(key));
            out.push(b':');
            if last_one == child {
                same &= self.emit_at(child, value, out, &inside)?;
            } else {
                out.extend_from_slice(self.raw(child));
            }
        }
        for (name, value) in map
            .iter()
            .filter(|(name, _)| !last.contains_key(name.as_str()))
        {
            same = false;
            separate(out, count);
            count += 1;
            write_text(name, out);
            out.push(b':');
            write(value, Some(self), out, 0)?;
        }
        out.push(b'}');
        Ok(same)
    }
}

/// Which parts of a value a transform may have changed.
enum Touched<'p> {
    /// All of it: it was assigned as a whole.
    Whole,
    /// What these paths reach inside it; with none, nothing.
    Inside(Vec<&'p [OwnedSegment]>),
}

impl<'p> Touched<'p> {
    fn of(paths: Vec<&'p [OwnedSegment]>) -> Self {
        if paths.iter().any(|path| path.is_empty()) {
            Self::Whole
        } else {
            Self::Inside(paths)
        }
    }

    fn is_untouched(&self) -> bool {
        matches!(self, Self::Inside(paths) if paths.is_empty())
    }

    fn below(&self, reaches: impl Fn(&OwnedSegment) -> bool) -> Self {
        match self {
            Self::Whole => Self::Whole,
            Self::Inside(paths) => Self::of(
                paths
                    .iter()
                    .filter_map(|path| path.split_first())
                    .filter(|(first, _)| reaches(first))
                    .map(|(_, rest)| rest)
                    .collect(),
            ),
        }
    }

    fn member(&self, name: &str) -> Self {
        self.below(
            |segment| matches!(segment, OwnedSegment::Field(field) if field.as_str() == name),
        )
    }

    fn item(&self, index: usize) -> Self {
        let index = isize::try_from(index).unwrap_or(isize::MAX);
        self.below(|segment| matches!(segment, OwnedSegment::Index(at) if *at == index))
    }
}

/// Writes a value as compact JSON. Floats that stand for digits of `origin` are written as those.
pub(crate) fn write(
    value: &Value,
    origin: Option<&Document>,
    out: &mut Vec<u8>,
    depth: usize,
) -> Result<(), String> {
    if depth > MAX_EMIT_DEPTH {
        return Err(format!(
            "the value is nested more than {MAX_EMIT_DEPTH} levels deep"
        ));
    }
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Boolean(true) => out.extend_from_slice(b"true"),
        Value::Boolean(false) => out.extend_from_slice(b"false"),
        Value::Integer(integer) => out.extend_from_slice(integer.to_string().as_bytes()),
        Value::Float(float) => {
            out.extend_from_slice(float_text(float.into_inner(), origin)?.as_bytes())
        }
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => write_text(text, out),
            Err(_) => {
                return Err("a text in the body is not UTF-8, which JSON cannot hold: encode it (encode_base64) first".to_owned());
            }
        },
        Value::String(text) => write_text(text, out),
        Value::Regex(regex) => write_text(regex.as_str(), out),
        Value::Timestamp(time) => write_text(&timestamp_text(time), out),
        Value::Array(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                separate(out, i);
                write(item, origin, out, depth + 1)?;
            }
            out.push(b']');
        }
        Value::Object(map) => {
            out.push(b'{');
            for (i, (name, value)) in map.iter().enumerate() {
                separate(out, i);
                write_text(name, out);
                out.push(b':');
                write(value, origin, out, depth + 1)?;
            }
            out.push(b'}');
        }
    }
    Ok(())
}

/// A float as JSON writes it, or the digits of the body it stands for.
pub(crate) fn float_text(float: f64, origin: Option<&Document>) -> Result<String, String> {
    if let Some(document) = origin
        && let Some(digits) = document.digits(float)?
    {
        return Ok(digits.to_owned());
    }
    serde_json::Number::from_f64(float)
        .map(|number| number.to_string())
        .ok_or_else(|| "a number is infinite, which JSON cannot hold".to_owned())
}

/// A time as text: RFC 3339 in UTC with as many digits as it has.
pub(crate) fn timestamp_text(time: &DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

fn separate(out: &mut Vec<u8>, index: usize) {
    if index > 0 {
        out.push(b',');
    }
}

pub(crate) fn write_text(text: &str, out: &mut Vec<u8>) {
    // Writing a string to a Vec does not fail.
    let _ = serde_json::to_writer(out, text);
}

/// A JSON number as VRL holds it.
fn number(text: &str) -> Value {
    let is_integer = !text.contains(['.', 'e', 'E']);
    match text.parse::<i64>() {
        Ok(integer) if is_integer => Value::Integer(integer),
        _ => {
            let float = text.parse::<f64>().unwrap_or(0.0);
            // No JSON number reads as NaN.
            Value::Float(ordered(float))
        }
    }
}

fn ordered(float: f64) -> vrl::prelude::NotNan<f64> {
    vrl::prelude::NotNan::new(float).unwrap_or_default()
}

/// Whether a double has exactly the value that its shortest text and `text` both write.
fn is_exact(text: &str, float: f64) -> bool {
    float.is_finite() && decimal(text) == decimal(&format!("{float:e}"))
}

/// A decimal number in one form: sign, digits without zeros at either end, exponent. Exponents that
/// leave 64 bits compare as their limits, far outside what a double holds.
pub(crate) fn decimal(text: &str) -> (bool, String, i64) {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, saturating(exponent)),
        None => (text, 0),
    };
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{part}");
    let digits = digits.trim_start_matches('0');
    let trimmed = digits.trim_end_matches('0');
    if trimmed.is_empty() {
        return (false, String::new(), 0);
    }
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let exponent = exponent
        .saturating_sub(count(part.len()))
        .saturating_add(count(digits.len() - trimmed.len()));
    (negative, trimmed.to_owned(), exponent)
}

fn saturating(exponent: &str) -> i64 {
    exponent.parse().unwrap_or(if exponent.starts_with('-') {
        i64::MIN / 2
    } else {
        i64::MAX / 2
    })
}
