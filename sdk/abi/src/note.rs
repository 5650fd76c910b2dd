//! The ELF note: what a plugin file says about itself before any of it runs.
//!
//! Section `.note.consign`, one ELF note: owner `CONSIGN`, type [`NOTE_TYPE`], description of at
//! most [`NOTE_BYTES`] bytes: lines `key=value` of UTF-8, padded with zero bytes. The first line is
//! `magic=consign-plugin`. Readers ignore keys they don't know.

/// The section that holds the note.
pub const NOTE_SECTION: &str = ".note.consign";
/// The note's owner, with its closing zero.
pub const NOTE_OWNER: [u8; 8] = *b"CONSIGN\0";
/// The note's type.
pub const NOTE_TYPE: u32 = 1;
/// Room for the description. A build that does not fit fails to compile.
pub const NOTE_BYTES: usize = 1024;
/// Value of the key `magic`.
pub const NOTE_MAGIC: &str = "consign-plugin";

/// A plugin's note, as it lies in the file.
#[repr(C, align(4))]
#[derive(Debug)]
pub struct NoteRecord {
    owner_bytes: u32,
    description_bytes: u32,
    kind: u32,
    owner: [u8; 8],
    description: [u8; NOTE_BYTES],
}

impl NoteRecord {
    /// A note of these pieces of text, one after the other. Evaluated at compile time.
    #[must_use]
    #[allow(
        clippy::indexing_slicing,
        reason = "runs in the compiler, where iterators do not"
    )]
    pub const fn new(pieces: &[&str]) -> Self {
        let mut description = [0; NOTE_BYTES];
        let mut end = 0;
        let mut piece = 0;
        while piece < pieces.len() {
            let bytes = pieces[piece].as_bytes();
            let mut i = 0;
            while i < bytes.len() {
                assert!(end < NOTE_BYTES, "the plugin's note is too long");
                description[end] = bytes[i];
                end += 1;
                i += 1;
            }
            piece += 1;
        }
        Self {
            owner_bytes: 8,
            description_bytes: 1024,
            kind: NOTE_TYPE,
            owner: NOTE_OWNER,
            description,
        }
    }
}

/// Major number of the ABI this crate describes: changed by anything an older side can't read.
pub const ABI_MAJOR: u32 = 1;
/// Minor number: raised by every addition.
pub const ABI_MINOR: u32 = 0;
/// Both, as the note holds them.
pub const ABI_VERSION: &str = "1.0";
/// Exported symbols of this prefix are a plugin's root; the rest is the package's own name, so
/// that several plugins may be linked into one binary.
pub const ROOT_SYMBOL_PREFIX: &str = "consign_plugin_root_";
