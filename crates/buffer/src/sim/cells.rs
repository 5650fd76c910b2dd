//! Which fault can meet which call on which kind of file. A long run in which one of these cells stays at zero has not
//! shown what it should, and fails; so does one that hits a cell this file does not know.
//!
//! Cells that cannot occur, and why:
//!
//! * `Open`, `Read`, `Size`, `Allocate`, `SetLen`, `List` and `Remove` of other files: only quarantined bytes and the
//!   folder itself are "other", and the buffer makes and writes those but never reads them. The lock is taken through
//!   a call of its own.
//! * `SyncDir`, `CreateDir`, `List` for checkpoints: they lie in the top folder, which is "other".
//! * `Allocate` of the log: a segment is written full of zeros instead, so that later writes change data alone.
//! * `Remove` of a checkpoint: its two slots are overwritten in turn and never unlinked.
//! * `SetLen` of spill and key files: they grow by `Allocate` and are never cut.
//! * `Size` of key files: how much of one is believed is what the checkpoint says.
//! * No space at `Open`, `Read`, `Size`, `List`, `Remove`: these need none.
//! * `Short` for anything but `Read` and `Write`: the other calls do all or nothing.
//!
//! There is no rename: the buffer overwrites two checkpoint slots in turn instead of renaming a new one into place.

/// What a call is, for the table of hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// Opening an existing file.
    Open,
    /// Making a file.
    Create,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Flushing a file.
    Sync,
    /// Flushing a folder.
    SyncDir,
    /// Reserving space.
    Allocate,
    /// Setting a length.
    SetLen,
    /// Asking for a length.
    Size,
    /// Removing a name.
    Remove,
    /// Listing a folder.
    List,
    /// Making a folder, or finding that it is there.
    CreateDir,
}

/// What kind of file it happens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Area {
    /// A log segment, or the folder of them.
    Log,
    /// A spill file, or a folder of them.
    Spill,
    /// A checkpoint slot.
    Checkpoint,
    /// A file of accepted keys, or a folder of them.
    Keys,
    /// The top folder, and quarantined bytes.
    Other,
}

/// What is done to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The process is killed before the call; in the middle of it when it writes.
    Kill,
    /// The power goes: as a kill, and unflushed bytes and names may be lost.
    PowerCut,
    /// An I/O error.
    Eio,
    /// No space.
    Enospc,
    /// Less is read or written than was asked.
    Short,
}

/// A fault that met a call.
pub type Cell = (Fault, Call, Area);

const ALL: &[Area] = &[
    Area::Log,
    Area::Spill,
    Area::Checkpoint,
    Area::Keys,
    Area::Other,
];
const FILES: &[Area] = &[Area::Log, Area::Spill, Area::Checkpoint, Area::Keys];
const FOLDERS: &[Area] = &[Area::Log, Area::Spill, Area::Keys, Area::Other];
const SITES: &[(Call, &[Area])] = &[
    (Call::Open, FILES),
    (Call::Create, ALL),
    (Call::Read, FILES),
    (Call::Write, ALL),
    (Call::Sync, ALL),
    (Call::SyncDir, FOLDERS),
    (Call::Allocate, &[Area::Spill, Area::Checkpoint, Area::Keys]),
    (Call::SetLen, &[Area::Log, Area::Checkpoint]),
    (Call::Size, &[Area::Log, Area::Spill, Area::Checkpoint]),
    (Call::Remove, &[Area::Log, Area::Spill, Area::Keys]),
    (Call::List, &[Area::Log, Area::Spill, Area::Keys]),
    (Call::CreateDir, FOLDERS),
];

/// Whether the call may find that there is no space.
pub fn needs_space(call: Call) -> bool {
    matches!(
        call,
        Call::Create
            | Call::Write
            | Call::Sync
            | Call::SyncDir
            | Call::Allocate
            | Call::SetLen
            | Call::CreateDir
    )
}

/// Every cell that can occur.
pub fn possible() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (call, areas) in SITES {
        let mut faults = vec![Fault::Kill, Fault::PowerCut, Fault::Eio];
        if needs_space(*call) {
            faults.push(Fault::Enospc);
        }
        if matches!(call, Call::Read | Call::Write) {
            faults.push(Fault::Short);
        }
        for area in *areas {
            cells.extend(faults.iter().map(|fault| (*fault, *call, *area)));
        }
    }
    cells
}
