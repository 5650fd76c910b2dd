//! From checked nodes to typed structs.
//!
//! The schema is checked first and reports every fault; what is read here has passed it. A fault
//! that only shows here (a schema and a type that disagree) is still an error, never a default.

use crate::node::{Data, Node};
use crate::{ByteSize, HumanDuration, Problem, Text};

pub(crate) trait FromNode: Sized {
    fn from_node(node: &Node) -> Result<Self, Problem>;
}

/// A thing that is written as `name: { … }`.
pub(crate) trait Named {
    fn name(&self) -> &Text;

    fn set_name(&mut self, name: Text);
}

pub(crate) fn wrong(node: &Node, expected: &str) -> Problem {
    Problem::error(
        &node.place,
        "wrong_type",
        format!("expected {expected}, got {}", node.described()),
    )
}

impl FromNode for Text {
    fn from_node(node: &Node) -> Result<Self, Problem> {
        node.text().cloned().ok_or_else(|| wrong(node, "a text"))
    }
}

impl FromNode for String {
    fn from_node(node: &Node) -> Result<Self, Problem> {
        Text::from_node(node).map(|text| text.as_str().to_owned())
    }
}

impl FromNode for bool {
    fn from_node(node: &Node) -> Result<Self, Problem> {
        match node.data {
            Data::Bool(value) => Ok(value),
            _ => Err(wrong(node, "true or false")),
        }
    }
}

macro_rules! parsed {
    ($($type:ty, $expected:literal;)*) => {$(
        impl FromNode for $type {
            fn from_node(node: &Node) -> Result<Self, Problem> {
                match &node.data {
                    Data::Number(number) => number.parse().map_err(|_| wrong(node, $expected)),
                    _ => Err(wrong(node, $expected)),
                }
            }
        }
    )*};
}

parsed! {
    u32, "a whole number";
    u64, "a whole number";
    f64, "a number";
}

macro_rules! unit {
    ($($type:ty),*) => {$(
        impl FromNode for $type {
            fn from_node(node: &Node) -> Result<Self, Problem> {
                let text = match &node.data {
                    Data::Number(number) => number.as_str(),
                    _ => node.text().map_or("", Text::as_str),
                };
                text.parse().map_err(|message: String| {
                    Problem::error(&node.place, "wrong_value", message)
                })
            }
        }
    )*};
}

unit!(HumanDuration, ByteSize);

impl<T: FromNode> FromNode for Option<T> {
    fn from_node(node: &Node) -> Result<Self, Problem> {
        match node.data {
            Data::Null => Ok(None),
            _ => T::from_node(node).map(Some),
        }
    }
}

impl<T: FromNode> FromNode for Box<T> {
    fn from_node(node: &Node) -> Result<Self, Problem> {
        T::from_node(node).map(Box::new)
    }
}

/// A list reads from a list; a table of named things reads from a mapping.
pub(crate) fn list<T: FromNode>(node: &Node) -> Result<Vec<T>, Problem> {
    match &node.data {
        Data::List(items) => items.iter().map(T::from_node).collect(),
        _ => Err(wrong(node, "a list")),
    }
}

pub(crate) fn table<T: FromNode + Named>(node: &Node) -> Result<Vec<T>, Problem> {
    match &node.data {
        Data::Map(entries) => entries
            .iter()
            .map(|(name, node)| {
                let mut item = T::from_node(node)?;
                item.set_name(name.clone());
                Ok(item)
            })
            .collect(),
        _ => Err(wrong(node, "a mapping")),
    }
}

/// How a field is read: `value` by its type, `list` and `table` by the functions above.
macro_rules! read_struct {
    ($type:ty { $($field:ident = $key:literal $how:ident),* $(,)? }) => {
        impl $crate::read::FromNode for $type {
            fn from_node(node: &$crate::node::Node) -> Result<Self, $crate::Problem> {
                let mut out = Self::default();
                if !matches!(node.data, $crate::node::Data::Map(_) | $crate::node::Data::Null) {
                    return Err($crate::read::wrong(node, "a mapping"));
                }
                for (key, value) in node.entries() {
                    match key.as_str() {
                        $($key => out.$field = $crate::read::$how(value)?,)*
                        _ => {}
                    }
                }
                out.place = node.place.clone();
                Ok(out)
            }
        }
    };
}

pub(crate) use read_struct;

pub(crate) fn value<T: FromNode>(node: &Node) -> Result<T, Problem> {
    T::from_node(node)
}

/// One text or a list of texts.
pub(crate) fn one_or_many(node: &Node) -> Result<Vec<Text>, Problem> {
    match &node.data {
        Data::List(_) => list(node),
        _ => Text::from_node(node).map(|text| vec![text]),
    }
}
