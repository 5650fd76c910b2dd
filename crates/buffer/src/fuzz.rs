//! Arbitrary bytes in place of the buffer's files: what the fuzz target runs, and the test that replays its corpus.
//!
//! An input changes one file of the version-1 fixture. The folder is then opened by the code that a host runs, every
//! pending write is read, a checkpoint is made, and it is opened once more. Whatever the bytes say, that ends with a
//! result or an error: no panic, no endless loop, no memory on the word of a length.
//!
//! ```text
//!  0  u8   which file, by its place in the fixture's list
//!  1  u8   1 = what follows is the whole file (zeros up to the old length); else it is a list of patches
//!          2 = sums are mended afterwards, so that what they guard is reached
//!  2  ..   the file, or patches: u16 offset, u8 length, the bytes
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::api::{Lost, Options};
use crate::codec::Take;
use crate::core::{Core, Now};
use crate::log::SEGMENT_HEADER;
use crate::record;
use crate::recovery;
use crate::sim::SimFilesystem;
use crate::spill::FILE_HEADER;

const FIXTURE: &str = include_str!("../tests/fixtures/v1/folder.txt");
const WHOLE: u8 = 1;
const MEND: u8 = 2;
/// A file is at most this long: larger ones say nothing new.
const MAX_FILE_BYTES: usize = 64 << 10;
/// Steps within which the first checkpoint is made.
const STEPS: u64 = 20;

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// What came out of one input, for the test.
#[derive(Debug)]
pub struct Found {
    /// Writes read.
    pub read: u64,
    /// What was lost, the reading included.
    pub lost: Lost,
}

/// Opens and reads the folder that an input describes, twice. `None` when it is refused with an error.
pub fn recover(input: &[u8]) -> Option<Found> {
    let mut files = fixture();
    change(&mut files, input);
    let fs = SimFilesystem::new(1);
    for (path, bytes) in files {
        fs.add_file(&Path::new("/sim").join(path), bytes);
    }
    let found = open_and_read(&fs)?;
    fs.reboot(crate::sim::Fault::Kill);
    open_and_read(&fs)?;
    Some(found)
}

fn open_and_read(fs: &SimFilesystem) -> Option<Found> {
    let options = Options {
        log_bytes: 64 << 10,
        log_segments: 4,
        spill_file_bytes: 2 << 10,
        log_entries: 8,
        ..Options::default()
    };
    let fs = Arc::new(fs.clone());
    let (mut core, recovery) = recovery::open("/sim".into(), options, fs, 1_000_000).ok()?;
    let read = recovery.lanes.len();
    let read = (0u32..)
        .take(read)
        .map(|lane| read_lane(&mut core, lane))
        .sum();
    for step in 0..STEPS {
        let mono_ms = 100 * step;
        core.step(Now {
            mono_ms,
            unix_ms: 1_000_000,
        });
    }
    let lost = core.shared.state.lock().lost.clone();
    Some(Found { read, lost })
}

fn read_lane(core: &mut Core, lane: u32) -> u64 {
    let (mut after, mut read) = (0, 0);
    while let Ok(got) = core.fetch(lane, after, 256, 1 << 20) {
        let Some(last) = got.writes.last() else {
            break;
        };
        assert!(last.seq > after, "reading comes forward");
        after = last.seq;
        read += got.writes.len() as u64;
    }
    read
}

/// The fixture's files, as `tests/formats.rs` writes them down.
fn fixture() -> Files {
    let mut files = Files::new();
    let mut at = PathBuf::new();
    for line in FIXTURE.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["file", name, len] => {
                at = PathBuf::from(name);
                files.insert(at.clone(), vec![0; len.parse().unwrap_or(0)]);
            }
            [offset, hex] => {
                let offset = usize::from_str_radix(offset, 16).unwrap_or(0);
                let bytes = files.get_mut(&at);
                let target = bytes.and_then(|b| b.get_mut(offset..offset + hex.len() / 2));
                for (i, byte) in target.into_iter().flatten().enumerate() {
                    *byte = u8::from_str_radix(&hex[i * 2..i * 2 + 2], 16).unwrap_or(0);
                }
            }
            _ => {}
        }
    }
    files
}

fn change(files: &mut Files, input: &[u8]) {
    let mut take = Take::new(input);
    let (Some(which), Some(flags)) = (take.u8(), take.u8()) else {
        return;
    };
    let count = files.len();
    let Some((path, bytes)) = files.iter_mut().nth(usize::from(which) % count) else {
        return;
    };
    if flags & WHOLE != 0 {
        let rest = input.get(2..).unwrap_or_default();
        let len = bytes.len();
        *bytes = rest[..rest.len().min(MAX_FILE_BYTES)].to_vec();
        bytes.resize(bytes.len().max(len), 0);
    } else {
        while let (Some(at), Some(len)) = (take.u16(), take.u8()) {
            let Some(patch) = take.raw(usize::from(len)) else {
                break;
            };
            let at = usize::from(at) % bytes.len().max(1);
            let n = patch.len().min(bytes.len() - at);
            bytes[at..at + n].copy_from_slice(&patch[..n]);
        }
    }
    if flags & MEND != 0 {
        mend(&path.clone(), bytes);
    }
}

/// Makes the sums of a file right for what it says.
fn mend(path: &Path, bytes: &mut [u8]) {
    let name = path.to_string_lossy();
    if name.starts_with("checkpoint") {
        for at in [0, bytes.len() / 2] {
            mend_checkpoint(&mut bytes[at..]);
        }
    } else if name.starts_with("log") {
        let salt = u64_at(bytes, 16 + 8);
        for at in [0, 2048] {
            mend_header(bytes, at);
        }
        mend_records(bytes, SEGMENT_HEADER as usize, salt);
    } else {
        let salt = u64_at(bytes, 16 + 12);
        mend_head(bytes, 0, 20);
        mend_records(bytes, FILE_HEADER as usize, salt);
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(|b| Take::new(b).u64());
    found.unwrap_or(0)
}

fn put(bytes: &mut [u8], at: usize, sum: u32) {
    if let Some(target) = bytes.get_mut(at..at + 4) {
        target.copy_from_slice(&sum.to_le_bytes());
    }
}

/// Magic, version, sum, and the body that it is the sum of.
fn mend_head(bytes: &mut [u8], at: usize, body: usize) {
    if let Some(body) = bytes.get(at + 16..at + 16 + body) {
        let sum = crc32c::crc32c(body);
        put(bytes, at + 12, sum);
    }
}

/// The same of a segment, where the version is in the sum.
fn mend_header(bytes: &mut [u8], at: usize) {
    if let (Some(version), Some(body)) = (bytes.get(at + 8..at + 12), bytes.get(at + 16..at + 44)) {
        let sum = crc32c::crc32c_append(crc32c::crc32c(version), body);
        put(bytes, at + 12, sum);
    }
}

fn mend_checkpoint(copy: &mut [u8]) {
    let len = usize::try_from(u64_at(copy, 24)).unwrap_or(usize::MAX);
    let Some(payload) = copy.get(64..).and_then(|b| b.get(..len)) else {
        return;
    };
    let sum = crc32c::crc32c_append(crc32c::crc32c(&copy[16..24]), payload);
    put(copy, 12, sum);
    let sum = crc32c::crc32c(&copy[..32]);
    put(copy, 32, sum);
    let sum = crc32c::crc32c(&copy[40..48]);
    put(copy, 48, sum);
}

fn mend_records(bytes: &mut [u8], mut at: usize, salt: u64) {
    while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= record::HEADER) {
        let mut take = Take::new(rest);
        let (len, _, _, numbers) = (take.u32(), take.u32(), take.u32(), take.u32());
        let (Some(len), Some(numbers)) = (len, numbers) else {
            return;
        };
        let table = record::HEADER.saturating_add((numbers as usize).saturating_mul(8));
        let end = record::HEADER + len as usize;
        let Some(payload) = rest.get(table..end) else {
            return;
        };
        let payload_sum = crc32c::crc32c(payload);
        put(bytes, at + 8, payload_sum);
        let sum = crc32c::crc32c(&salt.to_le_bytes());
        let sum = crc32c::crc32c_append(sum, &len.to_le_bytes());
        let sum = crc32c::crc32c_append(sum, &bytes[at + 8..at + table]);
        put(bytes, at + 4, sum);
        at += end.next_multiple_of(record::ALIGN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/recover")
    }

    /// Every file of the fixture as an input of its own, sums mended or not.
    fn seeds() -> Vec<(String, Vec<u8>)> {
        let mut seeds = Vec::new();
        for (place, (path, bytes)) in (0u8..).zip(fixture()) {
            let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
            let name = path.to_string_lossy().replace(['/', '.'], "-");
            for (flags, what) in [(WHOLE, "as-it-is"), (WHOLE | MEND, "mended")] {
                let mut input = vec![place, flags];
                input.extend(&bytes[..used]);
                seeds.push((format!("{name}-{what}"), input));
            }
        }
        seeds
    }

    /// With `CONSIGN_WRITE_CORPUS` set, writes the seeds first.
    #[test]
    fn every_input_of_the_corpus_ends_with_a_result_or_an_error() {
        if std::env::var_os("CONSIGN_WRITE_CORPUS").is_some() {
            for (name, input) in seeds() {
                std::fs::write(corpus().join(name), input).unwrap();
            }
        }
        let mut inputs = 0;
        for entry in std::fs::read_dir(corpus()).unwrap() {
            let path = entry.unwrap().path();
            let _ = recover(&std::fs::read(&path).unwrap());
            inputs += 1;
        }
        assert!(inputs >= seeds().len(), "{inputs} inputs");
    }

    /// What a fuzzer would try first, on any toolchain: patches of one file, mostly of small and of huge numbers.
    /// `CONSIGN_FUZZ_INPUTS` tries more.
    #[test]
    fn random_patches_end_with_a_result_or_an_error() {
        let inputs = std::env::var("CONSIGN_FUZZ_INPUTS").map_or(3_000, |n| n.parse().unwrap());
        let files = fixture().len() as u64;
        for seed in 0..inputs {
            let mut rng = crate::sim::Rng(seed);
            let mut input = vec![rng.below(files) as u8, MEND * u8::from(!rng.one_in(3))];
            for _ in 0..=rng.below(4) {
                let at = if rng.one_in(2) {
                    rng.below(256)
                } else {
                    rng.below(9_000)
                } as u16;
                let patch: Vec<u8> = match rng.below(4) {
                    0 => vec![rng.draw() as u8],
                    1 => vec![255; 1 + rng.below(8) as usize],
                    2 => vec![0; 1 + rng.below(8) as usize],
                    _ => rng.draw().to_le_bytes().to_vec(),
                };
                input.extend(at.to_le_bytes());
                input.push(patch.len() as u8);
                input.extend(patch);
            }
            if let Err(panic) = std::panic::catch_unwind(|| recover(&input)) {
                eprintln!("seed {seed}, input {input:?}");
                std::panic::resume_unwind(panic);
            }
        }
    }

    #[test]
    fn the_fixture_itself_is_whole_and_a_flipped_bit_in_it_is_not() {
        let whole = recover(&[]).unwrap();
        assert!(whole.lost.is_empty(), "{:?}", whole.lost);
        assert_eq!(whole.read, 23);
        let spill = fixture()
            .keys()
            .position(|p| p.starts_with("lanes"))
            .unwrap() as u8;
        // A byte of the first record's payload.
        let damaged = recover(&[spill, 0, 120, 0, 1, 255]).unwrap();
        assert_eq!(
            (damaged.lost.writes, damaged.read),
            (1, 22),
            "{:?}",
            damaged.lost
        );
        // With the sums mended it is another write and nobody can tell.
        let mended = recover(&[spill, MEND, 120, 0, 1, 255]).unwrap();
        assert_eq!(
            (mended.lost.writes, mended.read),
            (0, 23),
            "{:?}",
            mended.lost
        );
    }
}
