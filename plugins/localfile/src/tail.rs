//! Follows the lines of every file that matches a pattern through rotation, truncation and restart.
//! Knows nothing of the host: `poll` returns lines, `settle` says what became of them, and the
//! position that each line carries brings a new `Tail` to the same place.
//!
//! * A file is known by device, inode and time of birth, not by its name; its *generation* counts
//!   how often it was truncated (and, without a time of birth, how many files had its name before).
//!   Both, and its first line, are its incarnation.
//! * A position holds every file at the place reached when the line was read. The host accepts lines
//!   in the order they were handed over, so the last position it gives back misses no line and
//!   repeats none.
//! * Of the files that had one name, the older is read to its end before the newer is begun.

use crate::{
    cursor::{Cursor, Mark, Next},
    files::{FileId, Listed, Selection, open_to_read},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    fs::File,
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Files followed at once: each costs an open handle and some 200 bytes of the position.
pub const MAX_FILES: usize = 256;

/// How lines are read.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Files that are there at the very first start are read from their end on.
    pub from_end: bool,
    /// Longest line, in bytes.
    pub max_body: usize,
    /// How long a file that was rotated away must be silent before it counts as complete.
    pub rotate_wait: Duration,
}

/// A line that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The file's name when it was first seen, relative to the folder.
    pub file: String,
    /// What names the file's content: new after a truncation or a rotation.
    pub incarnation: [u8; 16],
    /// Where the line starts, in bytes.
    pub offset: u64,
    /// The line, without its ending.
    pub body: Vec<u8>,
    /// Where to go on after it.
    pub position: Vec<u8>,
    /// To be handed back to `settle`.
    pub ticket: Ticket,
}

/// Names a line that was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    id: FileId,
    generation: u32,
    sequence: u64,
}

/// The position as it is stored: JSON, so that a person can read it and write one to seek to.
#[derive(Debug, Serialize, Deserialize)]
struct Position {
    v: u8,
    files: Vec<Saved>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    file: String,
    device: u64,
    inode: u64,
    born_ns: u64,
    generation: u32,
    #[serde(flatten)]
    mark: Mark,
}

/// All files of one source.
#[derive(Debug)]
pub struct Tail {
    root: PathBuf,
    selection: Selection,
    settings: Settings,
    files: Vec<Followed>,
    /// Nothing was ever read: `from_end` applies to what is found now.
    first: bool,
    sequence: u64,
    warned_of_limit: bool,
}

#[derive(Debug)]
struct Followed {
    name: String,
    id: FileId,
    generation: u32,
    /// Where it was at the last poll, if the pattern still finds it.
    at: Option<PathBuf>,
    open: Option<Open>,
    /// Where reading goes on when the file is opened again.
    resume: Mark,
    /// Lines handed out and not settled: sequence, and the place before the line.
    flying: VecDeque<(u64, Mark)>,
    /// Read to its end, all of it settled, and not expected to grow.
    drained: bool,
    /// The last attempt to read it failed, and a person was told.
    failing: bool,
}

#[derive(Debug)]
struct Open {
    file: File,
    cursor: Cursor,
    /// Length and time of change when the file was last found unchanged.
    looked: Option<(u64, Option<SystemTime>)>,
    /// Since when it has been at its end while rotated away.
    silent_since: Option<Duration>,
}

impl Tail {
    /// Goes on from `position`, or begins without one. The error says why it can't be read.
    pub fn new(
        root: PathBuf,
        selection: Selection,
        settings: Settings,
        position: Option<&[u8]>,
    ) -> Result<Self, String> {
        let saved = position.map(serde_json::from_slice::<Position>).transpose();
        let saved = saved.map_err(|e| format!("the stored position can't be read: {e}"))?;
        let first = saved.is_none();
        let files = saved.map_or_else(Vec::new, |p| p.files);
        Ok(Self {
            root,
            selection,
            settings,
            files: files.into_iter().map(Followed::from).collect(),
            first,
            sequence: 0,
            warned_of_limit: false,
        })
    }

    /// Reads what is new, at most `max_lines` lines and about `max_bytes` bytes. Fewer than both
    /// means that nothing more is there now. `now` is any clock that does not go back.
    pub fn poll(
        &mut self,
        now: Duration,
        max_lines: usize,
        max_bytes: usize,
    ) -> io::Result<Vec<Line>> {
        self.discover()?;
        let mut lines = Vec::new();
        let mut room = max_bytes;
        for index in 0..self.files.len() {
            let result = self.read(index, now, max_lines, &mut room, &mut lines);
            self.report(index, result);
            if lines.len() >= max_lines || room == 0 {
                // The next poll begins with another file, so that a busy one starves no other.
                self.files.rotate_left(index + 1);
                break;
            }
        }
        Ok(lines)
    }

    /// A line was accepted, or found to be known: it will not be asked for again.
    pub fn settle(&mut self, ticket: Ticket) {
        if let Some(file) = self.followed(ticket)
            && let Some(place) = file.place(ticket)
        {
            file.flying.remove(place);
        }
    }

    /// A line came back: its file is read again from there on.
    pub fn hand_back(&mut self, ticket: Ticket) -> io::Result<()> {
        let Some(file) = self.followed(ticket) else {
            return Ok(());
        };
        let Some(place) = file.place(ticket) else {
            return Ok(());
        };
        if let Some((_, before)) = file.flying.get(place) {
            file.resume = *before;
            file.drained = false;
            // The file may be gone from its folder, so the handle is kept.
            if let Some(mut open) = file.open.take()
                && let Some(cursor) = Cursor::resume(&open.file, before)?
            {
                open.cursor = cursor;
                file.open = Some(open);
            }
        }
        file.flying.truncate(place);
        Ok(())
    }

    /// Goes to another place: an operator's wish, or `None` for the very beginning.
    pub fn seek(&mut self, position: Option<&[u8]>) -> Result<(), String> {
        let (root, selection) = (self.root.clone(), self.selection.clone());
        let settings = Settings {
            from_end: false,
            ..self.settings.clone()
        };
        let mut new = Self::new(root, selection, settings, position)?;
        // Numbers go on, so that a late answer to an old line is not taken for one to a new line.
        new.sequence = self.sequence;
        *self = new;
        Ok(())
    }

    fn followed(&mut self, ticket: Ticket) -> Option<&mut Followed> {
        let mut files = self.files.iter_mut();
        files.find(|f| f.id == ticket.id && f.generation == ticket.generation)
    }

    /// Finds new files, and where the known ones are now.
    fn discover(&mut self) -> io::Result<()> {
        let listed = self.selection.list(true)?;
        for file in &mut self.files {
            let here = listed.iter().find(|l| l.id == file.id);
            file.at = here.map(|l| l.path.clone());
            if file.drained && here.is_some_and(|l| l.metadata.len() > file.resume.offset) {
                file.drained = false;
            }
        }
        self.forget();
        for new in listed {
            if self.files.iter().any(|f| f.id == new.id)
                || self.files.iter().any(|f| f.name == new.name && !f.drained)
            {
                continue;
            }
            if self.files.len() >= MAX_FILES {
                if !self.warned_of_limit {
                    tracing::error!(
                        code = "too_many_files", limit = MAX_FILES, file = %new.name,
                        "more files match the pattern than can be followed: narrow `path`, or \
                         move finished files away"
                    );
                }
                self.warned_of_limit = true;
                break;
            }
            self.adopt(new)?;
        }
        self.first = false;
        Ok(())
    }

    fn adopt(&mut self, new: Listed) -> io::Result<()> {
        let older = self
            .files
            .iter()
            .filter(|f| f.name == new.name && new.id.born_ns == 0);
        let generation = older.map(|f| f.generation + 1).max().unwrap_or(0);
        let start = if self.first && self.settings.from_end {
            Cursor::at_end(&open_to_read(&new.path)?, self.settings.max_body)?
        } else {
            Cursor::default()
        };
        self.files.push(Followed {
            name: new.name,
            id: new.id,
            generation,
            at: Some(new.path),
            open: None,
            resume: start.mark(),
            flying: VecDeque::new(),
            drained: false,
            failing: false,
        });
        Ok(())
    }

    /// Drops files that are gone and finished. Where a number may name another file later (no time
    /// of birth), the last of a name is kept for its generation, while there is room.
    fn forget(&mut self) {
        let mut index = 0;
        while let Some(file) = self.files.get(index) {
            let gone = file.drained && file.at.is_none();
            let newer = |f: &Followed| f.name == file.name && f.generation > file.generation;
            let needless = file.id.born_ns != 0 || self.files.len() >= MAX_FILES;
            if gone && (needless || self.files.iter().any(newer)) {
                self.files.remove(index);
            } else {
                index += 1;
            }
        }
    }

    fn read(
        &mut self,
        index: usize,
        now: Duration,
        max_lines: usize,
        room: &mut usize,
        lines: &mut Vec<Line>,
    ) -> io::Result<()> {
        let Some(mut file) = self.files.get_mut(index) else {
            return Ok(());
        };
        if file.drained || !file.prepare(&self.root)? {
            return Ok(());
        }
        let rotated = file.at.as_deref() != Some(self.root.join(&file.name).as_path());
        loop {
            let Some(open) = &mut file.open else {
                return Ok(());
            };
            let before = open.cursor.mark();
            let mut next = open.cursor.next(self.settings.max_body);
            if next == Next::Nothing && open.cursor.fill(&open.file)? == 0 {
                if !rotated {
                    open.silent_since = None;
                    return Ok(());
                }
                if now < *open.silent_since.get_or_insert(now) + self.settings.rotate_wait {
                    return Ok(());
                }
                // Nobody will finish a last line that has no ending.
                next = open.cursor.rest(self.settings.max_body);
                if next == Next::Nothing {
                    // A line that came back would be read through this handle.
                    if file.flying.is_empty() {
                        file.resume = before;
                        file.open = None;
                        file.drained = true;
                    }
                    return Ok(());
                }
            }
            match next {
                Next::Nothing => continue,
                Next::TooLong { start, bytes } => tracing::error!(
                    code = "line_too_long", file = %file.name, offset = start, bytes,
                    limit = self.settings.max_body,
                    "a line is longer than `max_body` and was passed over"
                ),
                Next::Line { start, body } => {
                    self.sequence += 1;
                    file.flying.push_back((self.sequence, before));
                    let first = open.cursor.first_line();
                    let mut line = Line {
                        file: file.name.clone(),
                        incarnation: incarnation(&file.name, file.id, file.generation, first),
                        offset: start,
                        body,
                        position: Vec::new(),
                        ticket: Ticket {
                            id: file.id,
                            generation: file.generation,
                            sequence: self.sequence,
                        },
                    };
                    line.position = self.position();
                    *room = room.saturating_sub(line.body.len() + line.position.len());
                    lines.push(line);
                }
            }
            if lines.len() >= max_lines || *room == 0 {
                return Ok(());
            }
            let Some(again) = self.files.get_mut(index) else {
                return Ok(());
            };
            file = again;
            if let Some(open) = &mut file.open {
                open.silent_since = None;
            }
        }
    }

    /// One file that can't be read holds up no other; the first failure in a row is reported.
    fn report(&mut self, index: usize, result: io::Result<()>) {
        let Some(file) = self.files.get_mut(index) else {
            return;
        };
        if let Err(error) = &result
            && !file.failing
        {
            tracing::error!(
                code = "file_unreadable", file = %file.name,
                "the file can't be read and is tried again: {error}"
            );
        }
        file.failing = result.is_err();
    }

    /// Where to go on: every file at the place reached.
    fn position(&self) -> Vec<u8> {
        let files = self.files.iter().map(|file| Saved {
            file: file.name.clone(),
            device: file.id.device,
            inode: file.id.inode,
            born_ns: file.id.born_ns,
            generation: file.generation,
            mark: (file.open.as_ref()).map_or(file.resume, |open| open.cursor.mark()),
        });
        let position = Position {
            v: 1,
            files: files.collect(),
        };
        // Numbers and strings alone can always be written.
        serde_json::to_vec(&position).unwrap_or_default()
    }
}

impl From<Saved> for Followed {
    fn from(saved: Saved) -> Self {
        Self {
            name: saved.file,
            id: FileId {
                device: saved.device,
                inode: saved.inode,
                born_ns: saved.born_ns,
            },
            generation: saved.generation,
            at: None,
            open: None,
            resume: saved.mark,
            flying: VecDeque::new(),
            drained: false,
            failing: false,
        }
    }
}

impl Followed {
    /// Where the ticket's line is among those handed out.
    fn place(&self, ticket: Ticket) -> Option<usize> {
        let found = self
            .flying
            .binary_search_by_key(&ticket.sequence, |(sequence, _)| *sequence);
        found.ok()
    }

    /// Opens the file where it is now; false if it is gone.
    fn reopen(&mut self, root: &Path) -> io::Result<bool> {
        let path = match self.at.clone() {
            Some(path) => Some(path),
            None => find_beside(&root.join(&self.name), self.id)?,
        };
        let opened = path.map(|path| open_to_read(&path)).transpose();
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let Some(file) = file else {
            tracing::warn!(
                code = "file_gone", file = %self.name, offset = self.resume.offset,
                "the file is gone from its folder; lines after this offset, if there were any, \
                 are lost"
            );
            self.drained = true;
            return Ok(false);
        };
        if FileId::of(&file.metadata()?) != self.id {
            // It was replaced between listing and opening: the next poll sees that.
            return Ok(false);
        }
        let cursor = match Cursor::resume(&file, &self.resume)? {
            Some(cursor) => cursor,
            None => self.start_over(),
        };
        self.open = Some(Open {
            file,
            cursor,
            looked: None,
            silent_since: None,
        });
        Ok(true)
    }

    /// Opens the file if need be, and looks for a truncation.
    /// False if there is nothing to read from.
    fn prepare(&mut self, root: &Path) -> io::Result<bool> {
        if self.open.is_none() && !self.reopen(root)? {
            return Ok(false);
        }
        let Some(mut open) = self.open.take() else {
            return Ok(false);
        };
        let metadata = open.file.metadata()?;
        let looked = Some((metadata.len(), metadata.modified().ok()));
        if open.looked != looked && !open.cursor.still_there(&open.file)? {
            open.cursor = self.start_over();
        }
        open.looked = looked;
        self.open = Some(open);
        Ok(true)
    }

    /// The content is another one: its lines are new messages.
    fn start_over(&mut self) -> Cursor {
        tracing::warn!(
            code = "file_truncated", file = %self.name, offset = self.resume.offset,
            "the file was truncated or rewritten and is read from its start"
        );
        self.generation += 1;
        self.flying.clear();
        self.resume = Mark::default();
        Cursor::default()
    }
}

/// Names a file's content. The first line is part of it: a generation can be forgotten, if the
/// host stops before any position that holds it is accepted.
fn incarnation(name: &str, id: FileId, generation: u32, first_line: &[u8]) -> [u8; 16] {
    let mut hash = blake3::Hasher::new();
    for number in [id.device, id.inode, id.born_ns, u64::from(generation)] {
        hash.update(&number.to_le_bytes());
    }
    if id.born_ns == 0 {
        hash.update(name.as_bytes());
    }
    hash.update(first_line);
    let hash = hash.finalize();
    hash.as_bytes().first_chunk().copied().unwrap_or_default()
}

/// The file with this id in the folder of `path`, under whatever name it was rotated to.
fn find_beside(path: &Path, id: FileId) -> io::Result<Option<PathBuf>> {
    let Some(folder) = path.parent() else {
        return Ok(None);
    };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry
            .metadata()
            .is_ok_and(|m| m.is_file() && FileId::of(&m) == id)
        {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

#[cfg(test)]
#[path = "tail_tests.rs"]
mod tests;
