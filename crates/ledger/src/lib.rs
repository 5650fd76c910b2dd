//! The ledger: failed messages and the event log, in SQLite.
