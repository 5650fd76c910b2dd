//! What happens to a message between source and sends: pure, no I/O.
//!
//! * [`Program`]: an adapter, compiled once; evaluates messages.
//! * [`key`]: write keys, and the ids by which a repeat is recognised.
//! * [`StoredWrite`]: a rendered write as the buffer keeps it.
//! * [`cases`]: messages with expected outcomes, for `consign test`.
//!
//! Bodies that no transform touched leave byte for byte; see [`json`] for those that one touched.

pub mod cases;
mod evaluate;
mod event;
pub mod json;
pub mod key;
mod message;
mod program;
mod stored;
mod template;
pub mod topic;
mod vrl_program;

pub use evaluate::{
    Call, Claim, ConditionError, Matched, OrderKey, Outcome, Progress, RenderError, Rendered, Step,
    Verdict,
};
pub use key::{BodyDigest, KeyParts, WriteKey};
pub use message::{Message, MessageId};
pub use program::{Program, RouteProgram, SendProgram, TemplateInfo, try_expression};
pub use stored::{DecodeError, Original, STORED_VERSION, StoredWrite};
