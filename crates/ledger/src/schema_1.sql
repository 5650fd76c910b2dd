-- Schema 1 of the ledger. Released scripts are never edited: a change is a new script.

CREATE TABLE causes (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    code          TEXT NOT NULL,
    connection    TEXT NOT NULL,
    adapter       TEXT NOT NULL,
    route         TEXT NOT NULL,
    send          TEXT NOT NULL,
    waiting       INTEGER NOT NULL CHECK (waiting >= 0),
    total         INTEGER NOT NULL,
    first_unix_ms INTEGER NOT NULL,
    last_unix_ms  INTEGER NOT NULL,
    last_message  TEXT NOT NULL,
    UNIQUE (code, connection, adapter, route, send)
) STRICT;

CREATE TABLE failed (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    write_key       BLOB NOT NULL CHECK (length(write_key) = 16),
    adapter         TEXT NOT NULL,
    route           TEXT NOT NULL,
    send            TEXT NOT NULL,
    seq             INTEGER NOT NULL,
    state           TEXT NOT NULL,
    cause           INTEGER NOT NULL REFERENCES causes (id),
    connection      TEXT NOT NULL,
    operation       TEXT NOT NULL,
    message_id      TEXT,
    reason          TEXT NOT NULL,
    code            TEXT NOT NULL,
    message         TEXT NOT NULL,
    applied         TEXT NOT NULL,
    attempts        INTEGER NOT NULL,
    replayable      INTEGER NOT NULL,
    parked_unix_ms  INTEGER NOT NULL,
    changed_unix_ms INTEGER NOT NULL,
    changed_by      TEXT,
    claims          INTEGER NOT NULL DEFAULT 0,
    parkings        INTEGER NOT NULL DEFAULT 1,
    dependents      INTEGER NOT NULL,
    record          TEXT NOT NULL,
    body            BLOB NOT NULL,
    envelope        BLOB NOT NULL,
    original        BLOB,
    UNIQUE (write_key, adapter, route, send)
) STRICT;
CREATE INDEX failed_by_cause ON failed (cause, state, id);
CREATE INDEX failed_by_state ON failed (state, id);
CREATE INDEX failed_by_time ON failed (parked_unix_ms);
CREATE INDEX failed_by_message ON failed (message_id) WHERE message_id IS NOT NULL;

CREATE TABLE dependents (
    failed    INTEGER NOT NULL REFERENCES failed (id) ON DELETE CASCADE,
    nth       INTEGER NOT NULL,
    send      TEXT NOT NULL,
    write_key BLOB NOT NULL CHECK (length(write_key) = 16),
    envelope  BLOB NOT NULL,
    body      BLOB NOT NULL,
    PRIMARY KEY (failed, nth)
) STRICT;

CREATE TABLE claims (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    failed           INTEGER NOT NULL REFERENCES failed (id) ON DELETE CASCADE,
    act              TEXT NOT NULL,
    who              TEXT NOT NULL,
    from_state       TEXT NOT NULL,
    at_unix_ms       INTEGER NOT NULL,
    finished_unix_ms INTEGER,
    result           TEXT
) STRICT;
CREATE INDEX claims_by_failed ON claims (failed, id);
CREATE INDEX claims_open ON claims (id) WHERE finished_unix_ms IS NULL;

CREATE TABLE events (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    at_unix_ms    INTEGER NOT NULL,
    level         INTEGER NOT NULL,
    code          TEXT NOT NULL,
    adapter       TEXT,
    route         TEXT,
    send          TEXT,
    connection    TEXT,
    message       TEXT NOT NULL,
    fields        TEXT NOT NULL,
    times         INTEGER NOT NULL DEFAULT 1,
    ended_unix_ms INTEGER
) STRICT;
CREATE INDEX events_by_code ON events (code, id);
CREATE INDEX events_by_time ON events (at_unix_ms);
CREATE INDEX events_by_level ON events (level, id);
CREATE INDEX events_by_adapter ON events (adapter, id) WHERE adapter IS NOT NULL;
CREATE INDEX events_by_connection ON events (connection, id) WHERE connection IS NOT NULL;

CREATE TABLE episodes (
    subject        TEXT NOT NULL,
    code           TEXT NOT NULL,
    event          INTEGER NOT NULL,
    opened_unix_ms INTEGER NOT NULL,
    PRIMARY KEY (subject, code)
) STRICT, WITHOUT ROWID;

CREATE TABLE jobs (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    kind            TEXT NOT NULL,
    who             TEXT NOT NULL,
    state           TEXT NOT NULL,
    settings        TEXT NOT NULL,
    selection       TEXT NOT NULL,
    total           INTEGER NOT NULL,
    done            INTEGER NOT NULL DEFAULT 0,
    failed          INTEGER NOT NULL DEFAULT 0,
    at_unix_ms      INTEGER NOT NULL,
    changed_unix_ms INTEGER NOT NULL
) STRICT;
