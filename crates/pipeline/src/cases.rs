//! Messages with expected outcomes, for `consign test`.
