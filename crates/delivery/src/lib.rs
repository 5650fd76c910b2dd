//! Delivery: the state machine of lanes, gates and retries, without I/O.
