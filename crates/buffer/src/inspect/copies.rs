//! Checkpoints and the headers of log files are kept twice: which copies do not check and were stood in for.
//!
//! An opening reads on past such a copy and loses nothing, but the disk that spoilt it is to be looked at. It also
//! overwrites what it read past, so this looks before it.

use std::io;
use std::path::Path;

use crate::fs::{Filesystem, Open, read_full_at};
use crate::log::{Log, SEGMENT_HEADER, header_copies};
use crate::slots::{MAX_SLOT_BYTES, copy_generation, slot_path};

/// What [`second_copies`] found.
#[derive(Debug, Clone, Default)]
pub struct SecondCopies {
    doubts: Vec<Doubt>,
}

#[derive(Debug, Clone)]
struct Doubt {
    /// A run that ended in the middle of a write leaves this, too.
    by_a_crash: bool,
    text: String,
}

impl SecondCopies {
    /// A sentence for each copy that did not check and had another that did. After an unclean exit without those that
    /// were being written when the run ended: that is no fault of the disk.
    #[must_use]
    pub fn told(&self, unclean_exit: bool) -> Vec<String> {
        let told = self.doubts.iter();
        told.filter(|doubt| !(unclean_exit && doubt.by_a_crash))
            .map(|doubt| doubt.text.clone())
            .collect()
    }
}

/// Reads both copies of each checkpoint and of each log file's header. To be called before the buffer is opened.
///
/// # Errors
/// The folder or a file in it cannot be read. A folder that is not there has nothing to tell.
pub fn second_copies(dir: &Path, fs: &dyn Filesystem) -> io::Result<SecondCopies> {
    let mut found = SecondCopies::default();
    checkpoints(dir, fs, &mut found)?;
    headers(dir, fs, &mut found)?;
    Ok(found)
}

/// The front of a file, or `None` where there is no file.
fn front(fs: &dyn Filesystem, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match fs.open(path, Open::Read) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let len = file.size()?.min(most);
    let mut buf = vec![0u8; usize::try_from(len).unwrap_or(0)];
    let n = read_full_at(file.as_ref(), &mut buf, 0)?;
    buf.truncate(n);
    Ok(Some(buf))
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0)
}

fn checkpoints(dir: &Path, fs: &dyn Filesystem, found: &mut SecondCopies) -> io::Result<()> {
    let mut slots = Vec::new();
    for slot in 0..2 {
        let Some(buf) = front(fs, &slot_path(dir, slot), MAX_SLOT_BYTES)? else {
            continue;
        };
        if is_blank(&buf) {
            continue;
        }
        let (first, second) = buf.split_at(buf.len() / 2);
        slots.push((slot, copy_generation(first), copy_generation(second)));
    }
    // As opening decides: a slot is as new as its first copy that checks.
    let age = |(_, first, second): &(usize, Option<u64>, Option<u64>)| first.or(*second);
    let current = slots.iter().filter(|slot| age(slot).is_some());
    let Some(current) = current.max_by_key(|slot| age(slot)).map(|slot| slot.0) else {
        // With no checkpoint left nothing stood in, and opening says so itself.
        return Ok(());
    };
    for (slot, first, second) in slots {
        let is_current = slot == current;
        let (which, instead) = match (first, second) {
            (Some(_), Some(_)) => continue,
            (None, Some(_)) => ("its first copy", "the second was read"),
            (Some(_), None) => ("its second copy", "the first was read"),
            (None, None) => ("neither copy", "the other checkpoint was read"),
        };
        let verb = if which == "neither copy" {
            "checks"
        } else {
            "does not check"
        };
        found.doubts.push(Doubt {
            // The first copy is written first: where the second of the newest is whole, the first was, too.
            by_a_crash: !is_current || second.is_none(),
            text: format!("checkpoint-{slot}: {which} {verb}; {instead}"),
        });
    }
    Ok(())
}

fn headers(dir: &Path, fs: &dyn Filesystem, found: &mut SecondCopies) -> io::Result<()> {
    let names = match fs.list(&dir.join("log")) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let mut slots: Vec<usize> = names
        .iter()
        .filter_map(|name| name.strip_suffix(".log")?.parse().ok())
        .collect();
    slots.sort_unstable();
    for slot in slots {
        let Some(buf) = front(fs, &Log::path(dir, slot), SEGMENT_HEADER)? else {
            continue;
        };
        let (first, second) = buf.split_at(buf.len() / 2);
        let (which, spoilt) = match header_copies(&buf) {
            // Where neither checks, the segment is free, or opening says that it is missing.
            [true, true] | [false, false] => continue,
            [false, true] => ("first", first),
            [true, false] => ("second", second),
        };
        found.doubts.push(Doubt {
            by_a_crash: is_blank(spoilt),
            text: format!(
                "log/{slot:04}.log: the {which} copy of its header does not check; the other was read"
            ),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_explains_what_was_being_written_and_nothing_else() {
        let doubt = |by_a_crash, text: &str| Doubt {
            by_a_crash,
            text: text.to_owned(),
        };
        let found = SecondCopies {
            doubts: vec![doubt(true, "torn"), doubt(false, "flipped")],
        };
        assert_eq!(found.told(false), ["torn", "flipped"]);
        assert_eq!(found.told(true), ["flipped"]);
    }
}
