//! Events of what is kept on the disk: buffer, lanes, ledger.

use super::Entry;

pub(super) static ENTRIES: &[Entry] = &[
    entry!(
        BufferFailed, Error, "The buffer failed and takes nothing more",
        "A flush to the disk failed. What was acknowledged before is there; nothing more is accepted or sent, since a further flush could claim what is not so. Readiness is red.",
        "A broken disk, a file system that went read-only, storage that was taken away.",
        "Mend the storage, then restart the host: it reads what is durable and goes on from there.",
        ["error": "what the system said", "file": "which file"]
    ),
    entry!(
        BufferCorruption, Error, "A part of the buffer cannot be read",
        "The damaged part was put aside (`buffer/quarantine/`), everything that checks was kept, and the host goes on. `writes` counts the writes that are missing. A spill file is read when its lane comes to it, so this may come long after the start.",
        "A broken disk, or a file that was changed by something else.",
        "Keep the quarantined file. The message names it and what is missing; records that were settled already are no loss. Stop the host and run `consign buffer verify DATA_DIR` to find everything else that does not check. Replace the disk. Where a file of the log was removed or cut short, put it back from a copy only into a stopped host's folder of the same state.",
        ["places": "each file and offset", "records": "log records that are missing", "writes": "writes that are missing", "files": "files that are missing or cut short", "quarantined_bytes": "bytes put aside"]
    ),
    entry!(
        BufferHealed, Warn, "A second copy stood in for a damaged one",
        "Checkpoints and the headers of log files are kept twice. One copy does not check, the other does: nothing is lost.",
        "A broken disk, or a file that was changed by something else.",
        "Look at the disk. `consign buffer verify DATA_DIR` on the stopped host's folder finds everything that does not check.",
        ["copies": "how many copies do not check"]
    ),
    entry!(
        BufferTailCut, Info, "The end of the log was cut",
        "The last record was not whole. It had not been answered, so its source still has the message.",
        "The host or the machine ended in the middle of a write.",
        "Nothing.",
        ["bytes": "how much was cut"]
    ),
    entry!(
        LaneOrphaned, Error, "Pending writes belong to no send",
        "The configuration no longer has the send of a lane that is not empty. Its writes are kept and not sent.",
        "A send, route or adapter was renamed or removed.",
        "Renamed: add `formerly: [\"adapter/route/send\"]` to the send and reload. Removed on purpose: put the send back until its lane is empty.",
        ["lane": "the lane", "pending": "writes", "bytes": "their bytes"]
    ),
    entry!(
        LaneFull, Warn, "A lane is full",
        "Its pending writes reached its quota. Its source is held, or writes are dropped where the send has `when_full: drop`. One event stands for the episode.",
        "The destination is away or slower than the source.",
        "`consign status` shows the gate. Raise `quota`, or give the class more slots.",
        ["lane": "the lane", "quota_bytes": "its quota", "pending": "writes"]
    ),
    entry!(
        LaneHasRoom, Info, "A lane has room again",
        "Its source is read again.",
        "Writes were delivered, parked or purged.",
        "Nothing.",
        ["lane": "the lane", "lasted_ms": "how long it was full"]
    ),
    entry!(
        DiskLow, Warn, "The disk is nearly full",
        "What is left is less than the lanes may still need. Nothing is held yet.",
        "Quotas that add up to more than the disk, or something else on it.",
        "Make room, or lower quotas. `consign check FILE` compares quotas with the disk.",
        ["free_bytes": "what is left", "wanted_bytes": "what the quotas may need"]
    ),
    entry!(
        DiskFull, Error, "The disk is full",
        "Nothing more is accepted, and sources are held. Delivery goes on from what is kept, and settlements still have room. Nothing is lost.",
        "A long outage, or something else on the disk.",
        "Make room on the disk of `data_dir`. Acceptance goes on by itself.",
        ["path": "the folder", "error": "what the system said"]
    ),
    entry!(
        DiskHasRoom, Info, "There is room on the disk again",
        "Messages are accepted again. What was refused meanwhile was answered with 503, or is still with its source.",
        "Room was made, or lanes drained.",
        "Nothing.",
        ["path": "the folder", "lasted_ms": "how long it was full"]
    ),
    entry!(
        LedgerFull, Error, "The ledger is full",
        "Writes that should be parked wait at the head of their lanes, and events may be missing. Nothing is lost.",
        "The disk is full, or the ledger reached its own limit, and the reserve is spent.",
        "Make room on the disk of `data_dir`. Parking goes on by itself.",
        ["path": "the file"]
    ),
    entry!(
        LedgerLost, Error, "The ledger was gone and was made anew",
        "The buffer counts writes that were parked, and `ledger.db`, where they were put, was not in `data_dir`. A new one was made. The failed messages and the event log of before are not in it. Pending writes are in the buffer and are not touched.",
        "`ledger.db` was removed, or `data_dir` was restored or copied without it.",
        "Stop the host, put the old `ledger.db` back (with `ledger.db-wal` if there is one) and start again; the new one can be kept under another name. Without a copy those failed messages are lost; `parked` says how many were ever parked.",
        ["path": "the file", "parked": "writes parked since the lanes exist, sent again or skipped ones included"]
    ),
    entry!(
        ReserveReleased, Error, "The ledger uses its reserve",
        "The disk is full, so the file kept beside the ledger for this was given up. Parks and events land in its room for now.",
        "The disk is full.",
        "Make room on the disk of `data_dir` before the reserve is spent. It is taken back by itself.",
        ["bytes": "the reserve's size"]
    ),
    entry!(
        EventsDropped, Warn, "Events were not written",
        "More events came than the log could take, and delivery does not wait for it. The fields count them by level. Counters in `/metrics` are complete.",
        "A slow or full disk, or a flood of one kind of event.",
        "See `disk_full` and the events before this one.",
        ["total": "how many", "error": "of level error", "warn": "of level warn", "info": "of level info", "debug": "of level debug"]
    ),
    entry!(
        Unrecognised, Info, "An event of another version",
        "The log has an event whose code this version does not know.",
        "A newer version of the host wrote it.",
        "`consign explain` of that version has its page.",
        ["code": "the code as it stands in the log"]
    ),
];
