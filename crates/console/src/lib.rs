//! The HTTP side of a running host: health, metrics, a small API and a page to look at.
//!
//! * `GET /health/live`: the process answers. `GET /health/ready`: it makes progress; 503 with the
//!   reasons when it does not.
//! * `GET /metrics`: Prometheus text, from the status document alone.
//! * `GET /api/v1/status`, `/api/v1/events`, `/api/v1/promises`: JSON, one document each.
//! * `POST /api/v1/commands`: what people do, one JSON document each; always with a token.
//! * `GET /api/v1/login`: where that token is kept, for commands on the same machine.
//! * `GET /`: the same for people, rendered here, without a script.
//!
//! Everything is read from a [`HostView`], and commands are handed to it. On loopback no login is
//! needed unless a token is set, and then `/health/*` and `/metrics` stay open. Beyond loopback a
//! token is required, and only liveness and the bare readiness are open.

mod access;
mod metrics;
mod page;
mod routes;
mod time;
mod view;

pub use access::{Login, token_needed};
pub use metrics::render as metrics;
pub use routes::{router, serve};
pub use view::{
    AdapterStatus, BufferStatus, CommandError, ConnectionStatus, EventQuery, HostView, LaneStatus,
    Readiness, RecoveryStatus, RouteStatus, Status,
};
