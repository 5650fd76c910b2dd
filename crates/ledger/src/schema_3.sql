-- Schema 3: how often a message failed before it had any write, so that a restart does not begin anew.

CREATE TABLE attempts (
    message_id    BLOB PRIMARY KEY,
    adapter       TEXT NOT NULL,
    attempts      INTEGER NOT NULL,
    first_unix_ms INTEGER NOT NULL,
    last_unix_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
