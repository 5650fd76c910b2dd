//! Conformance kit: drives a connector against a real server and counts effects.
//!
//! * [`proxy`]: breaks TCP connections on purpose, at a chosen byte or request.
//! * [`services`]: real servers for tests.
//! * [`host`]: the built host as a process.
//! * [`keyed_server`], [`http_server`]: small servers of our own.
//! * [`library`]: a plugin's finished library, and its example in the host.
//! * [`conformance`]: the scenarios, and the `main` of a connector's `tests/conformance.rs`.

#![deny(missing_docs)]

pub mod conformance;
pub mod host;
pub mod http_server;
pub mod keyed_server;
pub mod library;
pub mod proxy;
pub mod services;

pub use services::{PrivateService, Service, private_service, service};
