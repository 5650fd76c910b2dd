-- Schema 2: dependents keep order and nesting, jobs their failures, outages and switches are new.

ALTER TABLE dependents ADD COLUMN order_hash INTEGER NOT NULL DEFAULT 0;
ALTER TABLE dependents ADD COLUMN parent INTEGER;

CREATE INDEX failed_by_lane ON failed (adapter, route, send, seq);

CREATE TABLE job_failures (
    job        INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    failed     INTEGER NOT NULL,
    message    TEXT NOT NULL,
    at_unix_ms INTEGER NOT NULL,
    PRIMARY KEY (job, failed)
) STRICT, WITHOUT ROWID;

CREATE TABLE outages (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    connection      TEXT NOT NULL,
    target          TEXT,
    from_unix_ms    INTEGER NOT NULL,
    to_unix_ms      INTEGER,
    settled_unix_ms INTEGER,
    report          TEXT NOT NULL
) STRICT;
CREATE INDEX outages_open ON outages (id) WHERE settled_unix_ms IS NULL;

CREATE TABLE switches (
    subject    TEXT PRIMARY KEY,
    who        TEXT NOT NULL,
    at_unix_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
