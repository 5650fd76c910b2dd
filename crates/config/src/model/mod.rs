//! The typed configuration: what an operator may write, with defaults, units and minimums in the
//! doc comments, which are also the descriptions in the JSON schema.

mod adapter;
mod host;
mod send;
mod settings;

pub use adapter::{Adapter, OnFailure, Processor, Route, SourceConfig, Transform};
pub use host::{
    BufferOptions, Class, Config, Connection, Console, EventOptions, FailedOptions, WriteKeyOptions,
};
pub use send::{
    AfterPark, Backoff, Batch, Delivery, OnAmbiguous, OnWindowPassed, Order, ParentSkipped,
    Require, Retry, Send, WhenFull,
};
pub use settings::{Secret, SecretKind, Settings, TemplateText};

use crate::Text;
use crate::read::Named;
use serde::{Serialize, Serializer};

/// Serializes a list of named things as the mapping it was written as.
fn as_table<T: Named + Serialize, S: Serializer>(list: &[T], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(list.iter().map(|item| (item.name().as_str(), item)))
}

macro_rules! named {
    ($($type:ty),*) => {$(
        impl Named for $type {
            fn name(&self) -> &Text {
                &self.name
            }

            fn set_name(&mut self, name: Text) {
                self.name = name;
            }
        }
    )*};
}

named!(Adapter, Class, Connection);
