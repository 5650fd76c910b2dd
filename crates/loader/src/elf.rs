//! What an ELF file says without running: machine, note, needed glibc, exported root symbols.

use consign_abi::note::{NOTE_OWNER, NOTE_SECTION, NOTE_TYPE, ROOT_SYMBOL_PREFIX};
use object::elf::{EM_AARCH64, EM_X86_64, FileHeader64};
use object::read::elf::{ElfFile64, FileHeader, SectionHeader, Sym};
use object::{Endianness, Object, ObjectSection};

/// A version of glibc.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Glibc(pub u32, pub u32, pub u32);

impl Glibc {
    /// Reads `2.36` or `2.2.5`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('.').map(str::parse::<u32>);
        let major = numbers.next()?.ok()?;
        let minor = numbers.next()?.ok()?;
        let patch = match numbers.next() {
            Some(patch) => patch.ok()?,
            None => 0,
        };
        Some(Self(major, minor, patch))
    }
}

impl std::fmt::Display for Glibc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)?;
        if self.2 > 0 {
            write!(f, ".{}", self.2)?;
        }
        Ok(())
    }
}

/// Why a file can't be read as a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ElfError {
    /// It does not begin as an ELF file does.
    NotElf,
    /// It begins so, but is another kind of ELF (32 bit, an executable, another machine).
    OtherKind(String),
    /// It is cut off or damaged.
    Damaged(String),
    /// It has no note of ours.
    NoNote,
}

#[derive(Debug)]
pub(crate) struct Elf {
    /// The note's description.
    pub note: String,
    /// The oldest glibc that has every symbol version the file asks for.
    pub glibc: Option<Glibc>,
    /// Names of exported symbols that look like a root.
    pub roots: Vec<String>,
}

const MACHINE: (&str, u16) = if cfg!(target_arch = "aarch64") {
    ("aarch64", EM_AARCH64)
} else {
    ("x86_64", EM_X86_64)
};

pub(crate) fn read(bytes: &[u8]) -> Result<Elf, ElfError> {
    if !bytes.starts_with(b"\x7fELF") {
        return Err(ElfError::NotElf);
    }
    // Byte 4 is the class, byte 5 the byte order; 2 and 1 are 64 bit and little-endian.
    match (bytes.get(4), bytes.get(5)) {
        (Some(2), Some(1)) => {}
        (Some(_), Some(_)) => {
            return Err(ElfError::OtherKind(
                "a 32-bit or big-endian library and not a 64-bit little-endian one".to_owned(),
            ));
        }
        _ => return Err(damaged("it ends inside the ELF header")),
    }
    let header = FileHeader64::<Endianness>::parse(bytes).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    let machine = header.e_machine(endian);
    if machine != MACHINE.1 {
        return Err(ElfError::OtherKind(format!(
            "a library for {} and not for {}",
            machine_name(machine),
            MACHINE.0
        )));
    }
    if header.e_type(endian) != object::elf::ET_DYN {
        return Err(ElfError::OtherKind(
            "an object or executable and not a shared library".to_owned(),
        ));
    }
    let file = ElfFile64::<Endianness>::parse(bytes).map_err(damaged)?;
    let note = note(&file)?;
    Ok(Elf {
        note,
        glibc: glibc(header, endian, bytes).map_err(damaged)?,
        roots: roots(&file, endian).map_err(damaged)?,
    })
}

fn damaged(why: impl ToString) -> ElfError {
    ElfError::Damaged(why.to_string())
}

fn machine_name(machine: u16) -> String {
    match machine {
        EM_AARCH64 => "aarch64".to_owned(),
        EM_X86_64 => "x86_64".to_owned(),
        other => format!("machine {other}"),
    }
}

fn note(file: &ElfFile64<'_, Endianness>) -> Result<String, ElfError> {
    let Some(section) = file.section_by_name(NOTE_SECTION) else {
        return Err(ElfError::NoNote);
    };
    let data = section.data().map_err(damaged)?;
    // A library of several crates may hold several notes in a row; the first of ours counts.
    let mut rest = data;
    while let Some(note) = next_note(rest) {
        if note.owner == NOTE_OWNER && note.kind == NOTE_TYPE {
            let text = std::str::from_utf8(note.description).map_err(damaged)?;
            return Ok(text.trim_end_matches('\0').to_owned());
        }
        rest = note.after;
    }
    Err(ElfError::NoNote)
}

struct NoteParts<'a> {
    owner: &'a [u8],
    kind: u32,
    description: &'a [u8],
    after: &'a [u8],
}

/// The note at the start of `bytes`; `None` when it is not whole.
fn next_note(bytes: &[u8]) -> Option<NoteParts<'_>> {
    let number = |at: usize| -> Option<u32> {
        let four = bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(four.try_into().ok()?))
    };
    let owner_bytes = usize::try_from(number(0)?).ok()?;
    let description_bytes = usize::try_from(number(4)?).ok()?;
    let kind = number(8)?;
    let owner_end = 12_usize.checked_add(owner_bytes)?;
    let owner = bytes.get(12..owner_end)?;
    let start = owner_end.checked_next_multiple_of(4)?;
    let end = start.checked_add(description_bytes)?;
    let description = bytes.get(start..end)?;
    let after = bytes.get(end.checked_next_multiple_of(4)?..).unwrap_or(&[]);
    Some(NoteParts {
        owner,
        kind,
        description,
        after,
    })
}

fn glibc(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    bytes: &[u8],
) -> object::Result<Option<Glibc>> {
    let sections = header.sections(endian, bytes)?;
    let mut oldest = None;
    for section in sections.iter() {
        let Some((mut needs, link)) = section.gnu_verneed(endian, bytes)? else {
            continue;
        };
        let strings = sections.strings(endian, bytes, link)?;
        while let Some((_, mut versions)) = needs.next()? {
            while let Some(version) = versions.next()? {
                let name = version.name(endian, strings)?;
                let name = std::str::from_utf8(name).unwrap_or_default();
                let needed = name.strip_prefix("GLIBC_").and_then(Glibc::parse);
                oldest = oldest.max(needed);
            }
        }
    }
    Ok(oldest)
}

fn roots(file: &ElfFile64<'_, Endianness>, endian: Endianness) -> object::Result<Vec<String>> {
    let table = file.elf_dynamic_symbol_table();
    let mut roots = Vec::new();
    for symbol in table.iter() {
        if symbol.is_undefined(endian) {
            continue;
        }
        let name = symbol.name(endian, table.strings())?;
        if let Ok(name) = std::str::from_utf8(name)
            && name.starts_with(ROOT_SYMBOL_PREFIX)
        {
            roots.push(name.to_owned());
        }
    }
    Ok(roots)
}

/// The glibc this process runs on; `None` on another C library.
pub(crate) fn running_glibc() -> Option<Glibc> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the function takes nothing and returns a static, zero-terminated string.
        let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
        Glibc::parse(version.to_str().ok()?)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert!(Glibc::parse("2.9") < Glibc::parse("2.34"));
        assert!(Glibc::parse("2.2.5") < Glibc::parse("2.3"));
        assert_eq!(Glibc::parse("PRIVATE"), None);
    }

    #[test]
    fn no_cut_of_an_elf_file_panics() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for end in (0..64).chain((64..whole.len()).step_by(whole.len() / 50)) {
            assert!(read(&whole[..end]).is_err());
        }
    }

    #[test]
    fn a_note_with_lying_lengths_is_no_note() {
        for bytes in [
            vec![],
            vec![0xff; 12],
            [8_u32.to_le_bytes(), [0xff; 4], 1_u32.to_le_bytes()].concat(),
        ] {
            assert!(next_note(&bytes).is_none());
        }
    }
}
