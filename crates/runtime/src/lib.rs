//! Adapters, acceptance, and the tasks that drive delivery: the parts of a host, wired together.
//!
//! * [`plan`]: a configuration, checked, with its plugins loaded, its routes compiled and its promises.
//! * [`host`]: a running host: start, supervise, stop; [`reload`]: another configuration meanwhile.
//! * `adapter`, `acceptance`: a message from its source to one durable record.
//! * `steps`, `handlers`, `functions`: what plugins do to a message on its way, and to one that failed.
//! * [`operator`]: what people do to failed messages and to a running host.
//! * [`offline`], [`lock`]: the buffer of a host that does not run, for the command line.
//! * `engine`, `plugs`, `park`: what the delivery machine asks for, carried out.

mod acceptance;
mod adapter;
mod attempts;
mod changed;
pub mod clock;
mod counters;
pub mod crashes;
mod drill;
mod engine;
mod events;
mod failing;
mod functions;
mod handlers;
pub mod host;
pub mod inspect;
mod lanes;
pub mod lock;
pub mod offline;
pub mod operator;
mod outages;
mod park;
pub mod plan;
mod plugs;
mod promises;
mod recent;
mod recovered;
pub mod reload;
mod retention;
mod settings;
mod source;
mod staging;
pub mod states;
mod steps;
mod targets;
mod templates;
mod token;
pub mod view;
mod watch;
mod wire;
mod work;

pub use counters::MessageOutcome;
pub use host::{Host, StartError};
pub use plan::{AdapterPlan, Copies, Plan, RoutePlan, SendPlan, plan};
pub use source::SourceState;
pub use token::token;
