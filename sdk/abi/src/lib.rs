//! The plugin boundary, ABI version 1: data types, codes and vtables that host and plugin share.
//!
//! Plugin authors never see this crate: `consign-plugin` hides it. It is the only crate that knows
//! `abi_stable`. Data structs are frozen for an ABI major and grow only through attribute lists;
//! vtables grow at their end (prefix types), and a method the other side lacks counts as absent.
#![deny(missing_docs)]
#![allow(
    unsafe_code,
    reason = "exporting and casting the root needs it, see `export`; and stacks for signals, see `stack`"
)]

mod codes;
mod data;
pub mod export;
pub mod json;
pub mod note;
mod stack;
mod vtable;

pub use abi_stable::library::LibHeader;
pub use abi_stable::prefix_type::PrefixTypeTrait;
pub use abi_stable::std_types::{ROption, RStr, RString, RVec};
pub use codes::{
    Advice, Applied, ControlKind, FailureKind, Scope, SettleCode, Status, attributes, flags,
};
pub use data::{
    AttributeRow, HeaderRow, MessageBatch, MessageRow, OutcomeRow, Reply, SettleRow, Span,
    TemplateRow, WriteBatch, WriteRow,
};
pub use stack::alternate_stack;
pub use vtable::{Call, Host, HostRef, Plugin, PluginRef};
