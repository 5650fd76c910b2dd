//! All tests of the pipeline from outside, in one binary: VRL is large, and is linked once.

mod bad_programs;
mod bodies;
mod cases;
mod common;
mod routes;
mod stored;
