//! Reads one file forward and cuts it into lines, remembering enough of what was read to notice
//! that the file has been truncated or rewritten.

use serde::{Deserialize, Serialize};
use std::{fs::File, io, os::unix::fs::FileExt};

/// Bytes from a file's start that are compared to notice a rewritten file.
const HEAD: usize = 256;
/// Bytes before the place reached that are compared as well: lines differ in their times.
const TAIL: usize = 64;
/// Bytes asked of the file system at once.
const CHUNK: usize = 64 << 10;

/// A place in a file, with fingerprints of what stands before it. A file that no longer has the
/// same bytes there has other content: it was truncated, or rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mark {
    /// Bytes from the start.
    pub offset: u64,
    /// Of the first `min(256, offset)` bytes.
    pub head: Print,
    /// Of the last `min(64, offset)` bytes before the place.
    pub tail: Print,
}

/// 64 bits of BLAKE3, written as hex so that no reader rounds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Print(u64);

impl Print {
    fn of(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self(0);
        }
        let hash = blake3::hash(bytes);
        let first = hash.as_bytes().first_chunk::<8>().copied();
        Self(u64::from_le_bytes(first.unwrap_or_default()))
    }
}

impl From<Print> for String {
    fn from(print: Print) -> Self {
        format!("{:016x}", print.0)
    }
}

impl TryFrom<String> for Print {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u64::from_str_radix(&text, 16).map(Self)
    }
}

/// What comes next in a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A whole line without its ending.
    Line { start: u64, body: Vec<u8> },
    /// A line of `bytes` bytes, more than allowed: it was passed over.
    TooLong { start: u64, bytes: u64 },
    /// Nothing whole yet.
    Nothing,
}

/// A place in an open file, and the bytes read past it.
#[derive(Debug, Default)]
pub struct Cursor {
    /// Up to where lines were handed out or passed over.
    offset: u64,
    head: Vec<u8>,
    /// Of `head`.
    print: Print,
    tail: Vec<u8>,
    /// Bytes read from `offset` on; those before `used` are handed out already.
    buffer: Vec<u8>,
    used: usize,
    /// Bytes after `used` in which there is no line ending.
    searched: usize,
    /// Where a line that is too long began, while it is passed over.
    passing_over: Option<Mark>,
}

impl Cursor {
    /// At the mark, or `None` if the file no longer has the bytes that were read from it.
    pub fn resume(file: &File, mark: &Mark) -> io::Result<Option<Self>> {
        let mut head = vec![0; at_most(HEAD, mark.offset)];
        let mut tail = vec![0; at_most(TAIL, mark.offset)];
        let before = mark.offset - tail.len() as u64;
        if !read_whole(file, &mut head, 0)?
            || !read_whole(file, &mut tail, before)?
            || Print::of(&head) != mark.head
            || Print::of(&tail) != mark.tail
        {
            return Ok(None);
        }
        Ok(Some(Self {
            offset: mark.offset,
            head,
            print: mark.head,
            tail,
            ..Self::default()
        }))
    }

    /// After the last whole line of the file, looking back no further than `max` bytes; at its end
    /// if none is found.
    pub fn at_end(file: &File, max: usize) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let back = length.min(max as u64);
        let mut last = vec![0; usize::try_from(back).unwrap_or(max)];
        let found = read_whole(file, &mut last, length - back)?;
        let newline = last.iter().rposition(|b| *b == b'\n');
        let offset = match newline {
            Some(at) if found => length - back + at as u64 + 1,
            _ => length,
        };
        let (mut head, mut tail) = (
            vec![0; at_most(HEAD, offset)],
            vec![0; at_most(TAIL, offset)],
        );
        let before = offset - tail.len() as u64;
        let whole = read_whole(file, &mut head, 0)? && read_whole(file, &mut tail, before)?;
        // A file that shrinks at this moment is read from its start.
        let cursor = whole.then(|| Self {
            offset,
            print: Print::of(&head),
            head,
            tail,
            ..Self::default()
        });
        Ok(cursor.unwrap_or_default())
    }

    /// The place reached: always the start of a line.
    pub fn mark(&self) -> Mark {
        self.passing_over.unwrap_or_else(|| Mark {
            offset: self.offset,
            head: self.print,
            tail: Print::of(&self.tail),
        })
    }

    /// The first line of the file, or as much of it as is compared: once a line was read, this
    /// stays the same for as long as the file has this content.
    pub fn first_line(&self) -> &[u8] {
        self.head
            .split_inclusive(|b| *b == b'\n')
            .next()
            .unwrap_or_default()
    }

    /// Up to where the file has been read, the unfinished line included.
    pub fn read_to(&self) -> u64 {
        self.offset + (self.buffer.len() - self.used) as u64
    }

    /// Whether the file still has the bytes that were read from it.
    pub fn still_there(&self, file: &File) -> io::Result<bool> {
        let (mut head, mut tail) = (vec![0; self.head.len()], vec![0; self.tail.len()]);
        let before = self.offset - tail.len() as u64;
        Ok(file.metadata()?.len() >= self.read_to()
            && read_whole(file, &mut head, 0)?
            && read_whole(file, &mut tail, before)?
            && head == self.head
            && tail == self.tail)
    }

    /// Reads on; says how many bytes came.
    pub fn fill(&mut self, file: &File) -> io::Result<usize> {
        let from = self.read_to();
        self.buffer.drain(..self.used);
        self.used = 0;
        let held = self.buffer.len();
        self.buffer.resize(held + CHUNK, 0);
        let read = match self.buffer.get_mut(held..) {
            Some(room) => file.read_at(room, from),
            None => Ok(0),
        };
        self.buffer
            .truncate(held + read.as_ref().copied().unwrap_or(0));
        read
    }

    /// The next whole line among what was read. A line of more than `max` bytes is passed over.
    pub fn next(&mut self, max: usize) -> Next {
        let waiting = self.buffer.get(self.used..).unwrap_or_default();
        let unsearched = waiting.get(self.searched..).unwrap_or_default();
        let Some(at) = unsearched.iter().position(|b| *b == b'\n') else {
            // One more byte is let through: it may be the "\r" of the ending.
            if waiting.len() > max + 1 {
                let all = waiting.len();
                self.passing_over = Some(self.mark());
                self.take(all);
            } else {
                self.searched = waiting.len();
            }
            return Next::Nothing;
        };
        let whole = self.searched + at + 1;
        self.line(whole, max)
    }

    /// What stands at the end of the file without a line ending, as a line.
    pub fn rest(&mut self, max: usize) -> Next {
        match self.buffer.len() - self.used {
            0 if self.passing_over.is_none() => Next::Nothing,
            all => self.line(all, max),
        }
    }

    fn line(&mut self, whole: usize, max: usize) -> Next {
        let began = self.passing_over.take();
        let start = began.map_or(self.offset, |mark| mark.offset);
        let mut body = self.take(whole);
        let bytes = self.offset - start;
        if body.last() == Some(&b'\n') {
            body.pop();
            if body.last() == Some(&b'\r') {
                body.pop();
            }
        }
        if body.len() > max || bytes > whole as u64 {
            return Next::TooLong { start, bytes };
        }
        Next::Line { start, body }
    }

    /// Moves past `count` bytes of the buffer and returns them.
    fn take(&mut self, count: usize) -> Vec<u8> {
        let taken = self.buffer.get(self.used..self.used + count);
        let taken = taken.unwrap_or_default().to_vec();
        let missing = HEAD - self.head.len().min(HEAD);
        if missing > 0 {
            self.head.extend(taken.iter().take(missing));
            self.print = Print::of(&self.head);
        }
        self.tail
            .extend(taken.iter().skip(taken.len().saturating_sub(TAIL)));
        self.tail.drain(..self.tail.len().saturating_sub(TAIL));
        self.offset += taken.len() as u64;
        self.used += taken.len();
        self.searched = 0;
        taken
    }
}

fn at_most(max: usize, length: u64) -> usize {
    usize::try_from(length).map_or(max, |length| max.min(length))
}

/// Fills `bytes` from `offset` on; false if the file ends before.
fn read_whole(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<bool> {
    match file.read_exact_at(bytes, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    fn lines(file: &File, cursor: &mut Cursor, max: usize) -> Vec<Next> {
        let mut all = Vec::new();
        loop {
            let read = cursor.fill(file).unwrap();
            loop {
                match cursor.next(max) {
                    Next::Nothing => break,
                    next => all.push(next),
                }
            }
            if read == 0 {
                return all;
            }
        }
    }

    fn line(start: u64, body: &str) -> Next {
        let body = body.into();
        Next::Line { start, body }
    }

    #[test]
    fn lines_end_at_lf_or_crlf_and_a_partial_one_waits() {
        let mut file = file(b"a\r\n\nb\rc\nrest");
        let mut cursor = Cursor::default();
        assert_eq!(
            lines(&file, &mut cursor, 9),
            [line(0, "a"), line(3, ""), line(4, "b\rc")]
        );
        assert_eq!((cursor.mark().offset, cursor.read_to()), (8, 12));
        file.write_all(b" of it\n").unwrap();
        assert_eq!(lines(&file, &mut cursor, 10), [line(8, "rest of it")]);
        file.write_all(b"end").unwrap();
        assert_eq!(lines(&file, &mut cursor, 10), []);
        assert_eq!(cursor.rest(10), line(19, "end"));
        assert_eq!(cursor.rest(10), Next::Nothing);
    }

    #[test]
    fn a_line_too_long_is_passed_over_however_it_is_read() {
        for long in [6, 7, 8, CHUNK, 3 * CHUNK + 5] {
            let file = file(&[vec![b'x'; long], b"\nok\n".to_vec()].concat());
            let mut cursor = Cursor::default();
            let too_long = Next::TooLong {
                start: 0,
                bytes: long as u64 + 1,
            };
            let after = line(long as u64 + 1, "ok");
            assert_eq!(lines(&file, &mut cursor, 5), [too_long, after], "{long}");
            assert!(cursor.buffer.capacity() <= 2 * CHUNK);
        }
        let exact = file(b"12345\r\n12345\n");
        let read = lines(&exact, &mut Cursor::default(), 5);
        assert_eq!(read, [line(0, "12345"), line(7, "12345")]);
    }

    #[test]
    fn a_mark_is_found_again_only_in_the_same_bytes() {
        let content: Vec<u8> = (0..2000)
            .flat_map(|n| format!("{n}\n").into_bytes())
            .collect();
        let whole = file(&content);
        let mut cursor = Cursor::default();
        cursor.fill(&whole).unwrap();
        for _ in 0..1500 {
            cursor.next(9);
        }
        let mark = cursor.mark();
        let mut again = Cursor::resume(&whole, &mark).unwrap().unwrap();
        again.fill(&whole).unwrap();
        assert_eq!(again.next(9), line(mark.offset, "1500"));
        assert!(cursor.still_there(&whole).unwrap());

        for at in [0, 255, mark.offset as usize - 1, mark.offset as usize - 64] {
            let mut other = content.clone();
            other[at] ^= 1;
            assert!(
                Cursor::resume(&file(&other), &mark).unwrap().is_none(),
                "{at}"
            );
            assert!(!cursor.still_there(&file(&other)).unwrap(), "{at}");
        }
        let short = file(&content[..mark.offset as usize - 1]);
        assert!(Cursor::resume(&short, &mark).unwrap().is_none());
        let new = Cursor::resume(&file(b""), &Mark::default()).unwrap();
        assert_eq!(new.unwrap().mark(), Mark::default());
    }

    #[test]
    fn the_end_is_after_the_last_whole_line() {
        for (content, offset) in [("", 0), ("a\nb\n", 4), ("a\npart", 2), ("part", 4)] {
            let file = file(content.as_bytes());
            assert_eq!(
                Cursor::at_end(&file, 99).unwrap().mark().offset,
                offset,
                "{content:?}"
            );
        }
    }

    #[test]
    fn a_mark_reads_back_from_its_text() {
        let mark = Mark {
            offset: 7,
            head: Print(1),
            tail: Print(u64::MAX),
        };
        let text = serde_json::to_string(&mark).unwrap();
        assert_eq!(serde_json::from_str::<Mark>(&text).unwrap(), mark);
        assert!(serde_json::from_str::<Print>("\"zz\"").is_err());
    }
}
