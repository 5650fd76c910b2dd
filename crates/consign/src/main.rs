//! Consign: the host and its command line.
fn main() {}
