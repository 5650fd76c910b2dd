//! The host as a process, for the tests beside this: the driver lives in the conformance kit, which
//! runs it too.

pub use consign_testkit::host::*;
