//! Conformance kit: drives a connector against a real server and counts effects.

pub mod proxy;
pub mod services;

pub use services::{PrivateService, Service, private_service, service};
