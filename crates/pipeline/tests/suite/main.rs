//! All tests of the pipeline from outside, in one binary: VRL is large, and is linked once.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail loudly, as tests do"
)]

mod bad_programs;
mod bodies;
mod cases;
mod common;
mod routes;
mod stored;
