//! What happens to a message between source and sends: pure, no I/O.
