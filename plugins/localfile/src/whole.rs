//! Takes the files of a folder whole, one message each, once they have stopped changing. Knows
//! nothing of the host, as `tail`: `poll` returns files, `settle` says what became of them, and the
//! position that each carries brings a new `Whole` to the same place.
//!
//! * A file is named by its name, device, inode, time of birth, time of change and size: when it is
//!   replaced or changed, it is a new message.
//! * A position lists the files that were settled and are still there, and the file itself. One file
//!   at a time is under way, so the list is always whole.
//! * A file that the host refused or dropped is never deleted or moved.

use crate::{
    config::After,
    files::{FileId, Listed, Selection, open_to_read, sync_folder},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fs::Metadata,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Files that were settled and are still in the folder: 20 bytes each in every position.
pub const MAX_REMEMBERED: usize = 4096;
/// A settled file is forgotten when it has been gone for this long: a folder that is not mounted
/// for a while looks empty.
const FORGET_AFTER: Duration = Duration::from_secs(3600);

/// How files are taken.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long a file must be unchanged.
    pub quiet: Duration,
    /// Largest file, in bytes.
    pub max_body: u64,
    /// What becomes of a file that was accepted.
    pub after: After,
    /// The folder for `After::Move`.
    pub move_to: Option<PathBuf>,
}

/// A file that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Its name, relative to the connection's folder.
    pub name: String,
    /// What names it and its content.
    pub identity: [u8; 16],
    /// All of it.
    pub body: Vec<u8>,
    /// When it was last changed.
    pub modified_unix_ms: i64,
    /// What the host is to keep once it is accepted.
    pub position: Vec<u8>,
    /// To be handed back to `settle`.
    pub ticket: Ticket,
}

/// Names a file that was handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    path: PathBuf,
    identity: [u8; 16],
}

/// The position as it is stored.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Position {
    v: u8,
    /// Accepted files.
    done: Vec<String>,
    /// Files the host refused or dropped: not read again, and left where they are.
    left: Vec<String>,
}

/// All files of one source.
#[derive(Debug)]
pub struct Whole {
    root: PathBuf,
    selection: Selection,
    settings: Settings,
    /// Since when each file is unchanged.
    watched: HashMap<PathBuf, ([u8; 16], Duration)>,
    /// Settled files, by the start of their identity.
    remembered: BTreeMap<u64, Remembered>,
    /// The file under way.
    flying: Option<[u8; 16]>,
    /// What the last look found and nobody considered yet, oldest first.
    found: VecDeque<Listed>,
    /// What a person was told of already.
    told: HashSet<[u8; 16]>,
    told_of_limit: bool,
}

#[derive(Debug, Clone, Copy)]
struct Remembered {
    left: bool,
    gone_since: Option<Duration>,
}

impl Whole {
    /// Goes on from `position`, or begins without one. The error says why it can't be read.
    pub fn new(
        root: PathBuf,
        selection: Selection,
        settings: Settings,
        position: Option<&[u8]>,
    ) -> Result<Self, String> {
        let saved = position.map(serde_json::from_slice::<Position>).transpose();
        let saved = saved.map_err(|e| format!("the stored position can't be read: {e}"))?;
        let saved = saved.unwrap_or_default();
        let entry = |text: &String, left| {
            let number = u64::from_str_radix(text, 16);
            let number = number.map_err(|_| format!("the position holds `{text}`"))?;
            Ok((
                number,
                Remembered {
                    left,
                    gone_since: None,
                },
            ))
        };
        let done = saved.done.iter().map(|t| entry(t, false));
        let left = saved.left.iter().map(|t| entry(t, true));
        Ok(Self {
            root,
            selection,
            settings,
            watched: HashMap::new(),
            remembered: done.chain(left).collect::<Result<_, String>>()?,
            flying: None,
            found: VecDeque::new(),
            told: HashSet::new(),
            told_of_limit: false,
        })
    }

    /// Goes to another place: an operator's wish, or `None` to take every file again.
    pub fn seek(&mut self, position: Option<&[u8]>) -> Result<(), String> {
        let (root, selection) = (self.root.clone(), self.selection.clone());
        let new = Self::new(root, selection, self.settings.clone(), position)?;
        self.remembered = new.remembered;
        self.found.clear();
        Ok(())
    }

    /// Reads the oldest file that is ready, unless one is under way. `now` is any clock that does not
    /// go back.
    pub fn poll(&mut self, now: Duration) -> io::Result<Option<Taken>> {
        if self.flying.is_some() {
            return Ok(None);
        }
        for scanned in [false, true] {
            if scanned {
                self.scan(now)?;
            }
            while let Some(file) = self.found.pop_front() {
                if let Some(taken) = self.consider(&file, now) {
                    return Ok(Some(taken));
                }
            }
        }
        Ok(None)
    }

    /// Looks through the folder.
    fn scan(&mut self, now: Duration) -> io::Result<()> {
        let mut listed = self.selection.list(false)?;
        if let Some(folder) = &self.settings.move_to {
            listed.retain(|l| !l.path.starts_with(folder));
        }
        listed.sort_by_key(|l| (l.metadata.mtime(), l.metadata.mtime_nsec(), l.name.clone()));
        let here: HashSet<[u8; 16]> = listed.iter().map(id_of).collect();
        let paths: HashSet<&PathBuf> = listed.iter().map(|l| &l.path).collect();
        self.watched.retain(|path, _| paths.contains(path));
        self.told.retain(|id| here.contains(id));
        for file in &listed {
            let id = id_of(file);
            let watched = self.watched.entry(file.path.clone()).or_insert((id, now));
            if watched.0 != id {
                *watched = (id, now);
            }
        }
        let starts: HashSet<u64> = here.iter().map(short).collect();
        self.remembered.retain(|id, entry| {
            if starts.contains(id) {
                entry.gone_since = None;
            }
            starts.contains(id) || now < *entry.gone_since.get_or_insert(now) + FORGET_AFTER
        });
        self.found = listed.into();
        Ok(())
    }

    fn consider(&mut self, file: &Listed, now: Duration) -> Option<Taken> {
        let id = id_of(file);
        match self.remembered.get(&short(&id)) {
            Some(entry) if entry.left => None,
            Some(_) => {
                let path = file.path.clone();
                self.finish(&Ticket { path, identity: id });
                None
            }
            None => self.take(file, id, now),
        }
    }

    /// A file was accepted or found to be known (`accepted`), or it was refused or dropped.
    pub fn settle(&mut self, ticket: &Ticket, accepted: bool) {
        self.flying = None;
        let entry = Remembered {
            left: !accepted,
            gone_since: None,
        };
        self.remembered.insert(short(&ticket.identity), entry);
        if accepted {
            self.finish(ticket);
        } else {
            tracing::error!(
                code = "file_left", file = %self.name(&ticket.path),
                "the host did not take the file; it is left where it is and not read again"
            );
        }
    }

    /// A file came back: it is read again.
    pub fn hand_back(&mut self) {
        self.flying = None;
        self.found.clear();
    }

    /// Whether one more file can be remembered.
    fn has_room(&mut self) -> bool {
        let room = self.remembered.len() < MAX_REMEMBERED;
        if !room && !self.told_of_limit {
            tracing::error!(
                code = "too_many_files",
                limit = MAX_REMEMBERED,
                "the folder holds more finished files than can be remembered and no more are \
                 read: set `after` to delete or move, or clear the folder"
            );
        }
        self.told_of_limit = !room;
        room
    }

    fn take(&mut self, file: &Listed, id: [u8; 16], now: Duration) -> Option<Taken> {
        let since = self
            .watched
            .get(&file.path)
            .map_or(now, |watched| watched.1);
        if now < since + self.settings.quiet || !self.has_room() {
            return None;
        }
        let size = file.metadata.len();
        if size > self.settings.max_body {
            let limit = self.settings.max_body;
            self.tell(id, &file.name, "file_too_large", &format!(
                "the file has {size} bytes, more than the {limit} of `max_body`: it is left alone"
            ));
            return None;
        }
        let body = match read(file, id) {
            Ok(body) => body?,
            Err(error) => {
                let what = format!("the file can't be read and is tried again: {error}");
                self.tell(id, &file.name, "file_unreadable", &what);
                return None;
            }
        };
        self.flying = Some(id);
        let millis = file.metadata.mtime_nsec() / 1_000_000;
        Some(Taken {
            name: file.name.clone(),
            identity: id,
            body,
            modified_unix_ms: file
                .metadata
                .mtime()
                .saturating_mul(1000)
                .saturating_add(millis),
            position: self.position(id),
            ticket: Ticket {
                path: file.path.clone(),
                identity: id,
            },
        })
    }

    /// Deletes or moves an accepted file, unless another one has taken its place. A failure is told
    /// once and tried again at each poll.
    fn finish(&mut self, ticket: &Ticket) {
        let name = self.name(&ticket.path);
        let result = match ticket.path.symlink_metadata() {
            _ if self.settings.after == After::Keep => return,
            Ok(found) if identity(&name, &found) == ticket.identity => self.put_away(ticket),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => {
                self.remembered.remove(&short(&ticket.identity));
            }
            Err(error) => {
                let what = format!("the file was accepted but can't be put away: {error}");
                self.tell(ticket.identity, &name, "file_stays", &what);
            }
        }
    }

    fn put_away(&self, ticket: &Ticket) -> io::Result<()> {
        let folder = ticket.path.parent().unwrap_or(&self.root);
        if let Some(target) = &self.settings.move_to {
            std::fs::create_dir_all(target)?;
            let name = ticket.path.file_name().unwrap_or_default();
            let mut to = target.join(name);
            if to.symlink_metadata().is_ok() {
                // Never over another file: two of one name came at different times.
                let mut other = name.to_owned();
                other.push(format!(".{:016x}", short(&ticket.identity)));
                to.set_file_name(other);
            }
            std::fs::rename(&ticket.path, &to)?;
            sync_folder(target)?;
        } else {
            std::fs::remove_file(&ticket.path)?;
        }
        sync_folder(folder)
    }

    fn position(&self, own: [u8; 16]) -> Vec<u8> {
        let text = |left: bool| {
            let entries = self
                .remembered
                .iter()
                .filter(move |(_, entry)| entry.left == left);
            entries.map(|(id, _)| format!("{id:016x}"))
        };
        let position = Position {
            v: 1,
            done: text(false)
                .chain([format!("{:016x}", short(&own))])
                .collect(),
            left: text(true).collect(),
        };
        // Numbers and strings alone can always be written.
        serde_json::to_vec(&position).unwrap_or_default()
    }

    fn tell(&mut self, id: [u8; 16], file: &str, code: &str, what: &str) {
        if self.told.insert(id) {
            tracing::error!(code, %file, "{what}");
        }
    }

    fn name(&self, path: &Path) -> String {
        let name = path.strip_prefix(&self.root).unwrap_or(path);
        name.to_string_lossy().into_owned()
    }
}

fn identity(name: &str, metadata: &Metadata) -> [u8; 16] {
    let id = FileId::of(metadata);
    let mut hash = blake3::Hasher::new();
    for number in [id.device, id.inode, id.born_ns, metadata.len()] {
        hash.update(&number.to_le_bytes());
    }
    for number in [metadata.mtime(), metadata.mtime_nsec()] {
        hash.update(&number.to_le_bytes());
    }
    hash.update(name.as_bytes());
    let hash = hash.finalize();
    hash.as_bytes().first_chunk().copied().unwrap_or_default()
}

fn id_of(file: &Listed) -> [u8; 16] {
    identity(&file.name, &file.metadata)
}

fn short(identity: &[u8; 16]) -> u64 {
    let first = identity.first_chunk::<8>().copied();
    u64::from_be_bytes(first.unwrap_or_default())
}

/// All of a file, or `None` if it changed meanwhile.
fn read(file: &Listed, id: [u8; 16]) -> io::Result<Option<Vec<u8>>> {
    let opened = open_to_read(&file.path)?;
    let size = file.metadata.len();
    let mut body = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    (&opened)
        .take(size.saturating_add(1))
        .read_to_end(&mut body)?;
    let same = body.len() as u64 == size && identity(&file.name, &opened.metadata()?) == id;
    Ok(same.then_some(body))
}

#[cfg(test)]
#[path = "whole_tests.rs"]
mod tests;
