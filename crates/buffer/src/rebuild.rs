//! After damage: what is pending is found out anew from what is really there.
//!
//! Damage may have taken settlements, spills, or the checkpoint that named a file, so the books say what was, not what
//! is. Every spill file is read whole, those that no checkpoint names included. A number that is neither settled nor in
//! a file nor in the log is lost, and counted. Then the charges are summed up from nothing.
//!
//! A lane's files must follow each other, so where two hold the same numbers (a copy that was made forward and what it
//! was made from) the first keeps them. Files end where the log begins, or the log's entries begin where the files end,
//! whichever loses less; in practice one of them has all that the other has.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::path::Path;

use crate::api::LOST;
use crate::fs::{FileHandle, Filesystem, Open, read_full_at};
use crate::lane::{LogPlace, SpillFile};
use crate::log::{Live, Slot};
use crate::plausible::{MAX_LANES, MAX_NUMBER};
use crate::salvage::{list, quarantine};
use crate::seqset::SeqSet;
use crate::spill::{FILE_HEADER, Step, Walk, parse_head};
use crate::state::State;
use crate::write::{Held, WriteView, parse_write};

/// Where the log's bytes are.
pub(crate) struct Segments<'a> {
    pub(crate) live: &'a [Live],
    pub(crate) slots: &'a [Slot],
}

impl Segments<'_> {
    fn read(&self, place: &LogPlace) -> io::Result<Option<Vec<u8>>> {
        let live = self.live.iter();
        let slot = live
            .filter(|l| l.header.number == place.segment)
            .find_map(|l| self.slots.get(l.slot));
        let Some(slot) = slot else { return Ok(None) };
        let mut enc = vec![0u8; place.len as usize];
        let n = read_full_at(slot.file.as_ref(), &mut enc, place.offset)?;
        Ok((n == enc.len() && crc32c::crc32c(&enc) == place.crc).then_some(enc))
    }
}

/// A spill file as it is found.
struct Found {
    /// Its books are made up once it is known which of its writes count.
    file: SpillFile,
    handle: Box<dyn FileHandle>,
    /// Its last number on the books, 0 = no checkpoint names it.
    known_to: u64,
    /// The pending writes in it.
    seqs: SeqSet,
}

/// A pending write that holds dependents.
#[derive(Debug, Clone)]
struct Parent {
    lane: u32,
    seq: u64,
    charge: u64,
    held: Held,
}

/// Parents by the keys of what they hold, at any depth.
type Holders = HashMap<[u8; 16], Vec<Parent>>;

/// Finds out anew what is pending, and what it is charged.
pub(crate) fn rebuild(
    fs: &dyn Filesystem,
    dir: &Path,
    log: &Segments<'_>,
    state: &mut State,
) -> io::Result<()> {
    let folder = dir.join("lanes");
    for name in list(fs, &folder)? {
        let number = u32::from_str_radix(&name, 16).ok();
        if let Some(number) = number.filter(|n| *n < MAX_LANES) {
            state.lane_mut(number);
        }
    }
    let mut holders = Holders::new();
    let mut kept = Vec::new();
    for number in (0u32..).take(state.lanes.len()) {
        let folder = folder.join(format!("{number:08x}"));
        let found = find_files(fs, dir, &folder, number, state)?;
        let files = choose(found, number, state);
        count_lost(&files, number, state);
        kept.push(install(files, number, state, &mut holders)?);
    }
    hold_from_log(log, state, &mut holders)?;
    if !holders.is_empty() {
        settle_parents(kept, state, &holders)?;
    }
    charge(state);
    Ok(())
}

/// Opens a lane's files and notes which pending writes are in each.
fn find_files(
    fs: &dyn Filesystem,
    dir: &Path,
    folder: &Path,
    number: u32,
    state: &mut State,
) -> io::Result<Vec<Found>> {
    let mut all = Vec::new();
    for name in list(fs, folder)? {
        let file_number = name
            .strip_suffix(".spill")
            .and_then(|n| u64::from_str_radix(n, 16).ok())
            .filter(|n| *n <= MAX_NUMBER);
        let Some(file_number) = file_number else {
            continue;
        };
        let path = folder.join(&name);
        let handle = match fs.open(&path, Open::Read) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let len = handle.size()?;
        let lane = state.lane_mut(number);
        lane.next_file = lane.next_file.max(file_number + 1);
        let known = lane.files.iter().find(|f| f.number == file_number).cloned();
        let salt = match &known {
            Some(known) => Some(known.salt),
            None => salt_of(handle.as_ref(), number, file_number)?,
        };
        let Some(salt) = salt else {
            // A file that was begun and never named has no head either, where the power went.
            if len > FILE_HEADER {
                let name = format!("spill-{number:08x}-{file_number:016x}");
                quarantine(fs, dir, (handle.as_ref(), &path), &name, 0, len, state);
            }
            continue;
        };
        let known = known.unwrap_or_default();
        let mut seqs = SeqSet::default();
        let mut walk = Walk::new(handle.as_ref(), salt, len.max(known.len), FILE_HEADER);
        let mut bad = Vec::new();
        while let Some(step) = walk.next()? {
            match step {
                Step::Record { seq, enc, .. } => {
                    let view = parse_write(&enc).filter(|v| v.lane == number);
                    let lane = state.lane_mut(number);
                    if view.is_some() && !lane.settled.contains(seq) {
                        seqs.insert(seq);
                    }
                }
                Step::Damage { offset, next } if offset < known.len.min(len) => {
                    bad.push((offset, next.min(known.len)));
                }
                Step::Damage { .. } => {}
            }
        }
        for (offset, next) in bad {
            let name = format!("spill-{number:08x}-{file_number:016x}");
            quarantine(
                fs,
                dir,
                (handle.as_ref(), &path),
                &name,
                offset,
                next,
                state,
            );
        }
        all.push(Found {
            file: SpillFile {
                number: file_number,
                salt,
                len: known.len.max(FILE_HEADER),
                sealed: true,
                ..SpillFile::default()
            },
            handle,
            known_to: known.last_seq,
            seqs,
        });
    }
    let lane = state.lane_mut(number);
    let there = |n: u64| all.iter().any(|f| f.file.number == n);
    let missing: Vec<u64> = lane
        .files
        .iter()
        .map(|f| f.number)
        .filter(|n| !there(*n))
        .collect();
    for file in missing {
        state.lost.files += 1;
        state.note_loss(format!(
            "spill file {file} of lane number {number} is missing"
        ));
    }
    Ok(all)
}

fn salt_of(handle: &dyn FileHandle, lane: u32, number: u64) -> io::Result<Option<u64>> {
    let mut head = vec![0u8; FILE_HEADER as usize];
    let n = read_full_at(handle, &mut head, 0)?;
    head.truncate(n);
    let head = parse_head(&head).filter(|h| h.lane == lane && h.number == number);
    Ok(head.map(|h| h.salt))
}

fn first(set: &SeqSet) -> Option<u64> {
    set.iter().next().map(|(from, _)| from)
}

/// The part of a set that is in `from..=to`.
fn within(set: &SeqSet, from: u64, to: u64) -> SeqSet {
    let mut part = SeqSet::default();
    for (a, b) in set.iter() {
        part.insert_range(a.max(from), b.min(to));
    }
    part
}

fn count(set: &SeqSet) -> u64 {
    set.iter().map(|(from, to)| to - from + 1).sum()
}

/// Which files are kept, in order, each with the writes that count; and where the log's entries begin.
fn choose(mut all: Vec<Found>, number: u32, state: &mut State) -> Vec<Found> {
    all.sort_by_key(|f| (first(&f.seqs), Reverse(count(&f.seqs))));
    let (mut through, mut in_files) = (0, SeqSet::default());
    for found in &mut all {
        found.seqs = within(&found.seqs, through + 1, u64::MAX - 1);
        for (from, to) in found.seqs.iter() {
            in_files.insert_range(from, to);
            through = through.max(to);
        }
    }
    let lane = state.lane_mut(number);
    if let Some((&begin, _)) = lane.entries.first_key_value() {
        let by_log = within(&in_files, begin, through);
        let only_files =
            count(&by_log) - lane.entries.keys().filter(|s| by_log.contains(**s)).count() as u64;
        let early: Vec<u64> = lane.entries.range(..=through).map(|(s, _)| *s).collect();
        let only_log = early.iter().filter(|s| !in_files.contains(**s)).count() as u64;
        if only_log < only_files {
            early
                .into_iter()
                .for_each(|seq| drop(state.drop_entry(number, seq)));
        } else {
            through = through.min(begin - 1);
            for found in &mut all {
                found.seqs = within(&found.seqs, 1, begin - 1);
            }
        }
    }
    let lane = state.lane_mut(number);
    let last = lane.entries.last_key_value().map_or(0, |(seq, _)| *seq);
    lane.spilled_through = lane.spilled_through.max(through);
    lane.next_seq = lane.next_seq.max(through + 1).max(last + 1);
    all.retain(|f| first(&f.seqs).is_some());
    all
}

/// Reads the chosen writes once more and puts them on the books.
fn install(
    mut files: Vec<Found>,
    number: u32,
    state: &mut State,
    holders: &mut Holders,
) -> io::Result<Vec<Found>> {
    let mut notes = Vec::new();
    for found in &mut files {
        let end = found.handle.size()?.max(found.file.len);
        let mut walk = Walk::new(found.handle.as_ref(), found.file.salt, end, FILE_HEADER);
        let (mut last, mut adopted) = (0, 0u64);
        while let Some(step) = walk.next()? {
            let Step::Record { seq, enc, next, .. } = step else {
                continue;
            };
            let wanted = seq > last && found.seqs.contains(seq);
            let Some(view) = parse_write(&enc).filter(|_| wanted) else {
                continue;
            };
            if last == 0 {
                found.file.first_seq = seq;
            }
            last = seq;
            found.file.last_seq = seq;
            found.file.len = found.file.len.max(next);
            found.file.put_on(view.charge(), &view.held());
            adopted += u64::from(seq > found.known_to);
            hold(&view, number, seq, holders);
        }
        if adopted > 0 {
            let id = &state.lane_mut(number).id;
            notes.push(format!(
                "lane {id}: {adopted} writes were salvaged from {:016x}.spill",
                found.file.number
            ));
        }
    }
    let lane = state.lane_mut(number);
    lane.files = files.iter().map(|f| f.file.clone()).collect();
    lane.spilled.clear();
    notes.into_iter().for_each(|note| state.note_loss(note));
    Ok(files)
}

/// Numbers that were given, are not settled and are nowhere.
fn count_lost(files: &[Found], number: u32, state: &mut State) {
    let lane = state.lane_mut(number);
    let mut have = lane.settled.clone();
    for (from, to) in files.iter().flat_map(|f| f.seqs.iter()) {
        have.insert_range(from, to);
    }
    lane.entries.keys().for_each(|seq| {
        have.insert(*seq);
    });
    let gone = have.missing_in(1, lane.next_seq - 1);
    if lane.frontier >= lane.next_seq {
        // Numbers whose writes are not known any more, or that were never given: a frontier runs ahead. What the log
        // notes of them must not be taken for later writes', so they are not given again.
        lane.settled.insert_range(lane.next_seq, lane.frontier);
        lane.next_seq = lane.frontier + 1;
    }
    let Some((begin, _)) = gone.first().copied() else {
        return;
    };
    let mut lost = 0;
    for (from, to) in gone {
        lost += to - from + 1;
        lane.settled.insert_range(from, to);
        lane.states.retain(|seq, _| *seq < from || *seq > to);
    }
    lane.count_outcome(LOST, lost);
    let sentence = format!(
        "lane {}: {lost} writes from number {begin} on are lost",
        lane.id
    );
    state.lost.writes += lost;
    state.note_loss(sentence);
}

/// Notes under which keys a write's dependents would be found if they were out.
fn hold(view: &WriteView<'_>, lane: u32, seq: u64, holders: &mut Holders) {
    let held = view.held();
    if held.is_empty() {
        return;
    }
    let parent = Parent {
        lane,
        seq,
        charge: view.charge(),
        held,
    };
    let mut inside: Vec<&[u8]> = view.children.clone();
    while let Some(child) = inside.pop() {
        if let Some(child) = parse_write(child) {
            holders.entry(child.key).or_default().push(parent.clone());
            inside.extend(child.children);
        }
    }
}

/// The same for parents in the log.
fn hold_from_log(log: &Segments<'_>, state: &State, holders: &mut Holders) -> io::Result<()> {
    for (number, lane) in (0u32..).zip(&state.lanes) {
        for (&seq, entry) in lane.entries.iter().filter(|(_, e)| e.held.is_some()) {
            // What does not check is found lost when it is read.
            if let Some(view) = log.read(&entry.place)?.as_deref().and_then(parse_write) {
                hold(&view, number, seq, holders);
            }
        }
    }
    Ok(())
}

/// A parent whose dependents are out was settled by the record that released them. That record is among what was lost;
/// pending once more, the parent would release them a second time.
fn settle_parents(kept: Vec<Vec<Found>>, state: &mut State, holders: &Holders) -> io::Result<()> {
    let mut settled: Vec<Parent> = Vec::new();
    let mut out = |key: &[u8; 16]| settled.extend(holders.get(key).into_iter().flatten().cloned());
    for lane in &state.lanes {
        lane.entries.values().for_each(|entry| out(&entry.key));
    }
    for found in kept.iter().flatten() {
        let mut walk = Walk::new(
            found.handle.as_ref(),
            found.file.salt,
            found.file.len,
            FILE_HEADER,
        );
        while let Some(step) = walk.next()? {
            if let Step::Record { seq, enc, .. } = step
                && found.seqs.contains(seq)
                && let Some(view) = parse_write(&enc)
            {
                out(&view.key);
            }
        }
    }
    for parent in settled {
        let lane = state.lane_mut(parent.lane);
        if !lane.settled.insert(parent.seq) {
            continue;
        }
        lane.states.remove(&parent.seq);
        if let Some(file) = lane.file_of(parent.seq) {
            file.take_off(1, parent.charge, &parent.held);
        }
        let sentence = format!(
            "lane {}: write {} was settled, since what depended on it is out; the settlement itself is lost",
            lane.id, parent.seq
        );
        state.drop_entry(parent.lane, parent.seq);
        state.reclaim = true;
        state.note_loss(sentence);
    }
    Ok(())
}

/// Sums up what each lane is charged.
fn charge(state: &mut State) {
    let mut charges: Vec<(u32, u64)> = Vec::new();
    for (number, lane) in (0u32..).zip(&state.lanes) {
        for entry in lane.entries.values() {
            charges.push((number, entry.charge));
            charges.extend(entry.held.iter().flat_map(|h| h.iter().copied()));
        }
        for file in &lane.files {
            charges.push((number, file.live_charge));
            charges.extend(file.held.iter().map(|(l, c)| (*l, *c)));
        }
    }
    state.lanes.iter_mut().for_each(|lane| lane.charged = 0);
    for (number, charge) in charges {
        state.lane_mut(number).charged += charge;
    }
}
