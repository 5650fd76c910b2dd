//! The plugin boundary, ABI version 1: data types, codes and vtables that host and plugin share.
//!
//! Plugin authors never see this crate: `consign-plugin` hides it. It is the only crate that knows
//! `abi_stable`. Data structs are frozen for an ABI major and grow only through attribute lists;
//! vtables grow at their end (prefix types), and a method the other side lacks counts as absent.
#![allow(
    unsafe_code,
    reason = "exports and layout checks need it; see `export`"
)]

mod codes;
mod data;

pub use abi_stable::std_types::{RStr, RString, RVec};
pub use codes::{Advice, Applied, ControlKind, FailureKind, Scope, SettleCode, Status, flags};
pub use data::{
    AttributeRow, HeaderRow, MessageBatch, MessageRow, OutcomeRow, Reply, SettleRow, Span,
    TemplateRow, WriteBatch, WriteRow,
};
