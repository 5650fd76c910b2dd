//! Promises, levels two to four: resolved for one configuration, inspected at the live
//! destination, and end to end for a route. Pure functions over the types of `consign-manifest`.
//!
//! * [`resolve()`]: level two. Narrows a plugin's answer by what the host does with the send.
//! * [`inspected()`]: level three. Merges what an inspection found.
//! * [`end_to_end()`] and [`route()`]: level four, the table of docs/architecture.md, "Promises".
//! * [`require()`]: a send or route that must keep a promise, or the reason why it cannot.
//! * [`table`]: the generated docs/promises.md; [`proven`]: the records of conformance runs behind
//!   its last column; [`ceiling`]: the check of our ids against a published table.
//!
//! No level is ever stronger than the one before it; a test walks every combination.

pub mod ceiling;
mod end_to_end;
mod inspected;
mod level;
pub mod proven;
mod requirement;
mod resolve;
mod route;
pub mod table;

pub use end_to_end::{EndToEnd, KeyAcross, SourceFacts, end_to_end};
pub use inspected::{Inspected, inspected};
pub use level::Level;
pub use requirement::{Shortfall, require};
pub use resolve::{
    AfterPark, DeliveryMode, OnAmbiguous, Order, SendFacts, SendPromise, declared_level, resolve,
};
pub use route::{RoutePromise, SendLevels, route};
