//! What an operator configures: the folder, which files are read and how, and where writes go.

use crate::files::{Selection, check_relative};
use consign_plugin::prelude::*;
use std::path::{Path, PathBuf};

/// A folder of this machine. Nothing outside it is read or written, whatever a path or a message
/// says; symlinks that lead out of it are not followed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionConfig {
    /// The folder. A relative path starts at the configuration file's folder.
    #[schemars(extend("format" = "path"))]
    pub root: PathBuf,
    /// Create the folder when it is missing. Set `false` where it is a mount point, so that a
    /// missing mount is an outage instead of a new, empty folder. Default: `true`.
    #[serde(default = "yes")]
    pub create: bool,
}

/// Writes each message to a file: a new one, in place of one, or at the end of one.
///
/// A file is written beside its place, flushed, then renamed, and the folder is flushed: a reader
/// sees the old file or the whole new one, and what counts as delivered survives a power cut. Two
/// writes with the same name and the same bytes are one file.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteConfig {
    /// The file's path below `root`, usually a template (`"in/{{ .body.id }}.json"`). A rendered
    /// path that leads out of `root`, or names no file, is refused.
    pub path: Template,
    /// Add to the end of the file instead of replacing it; a write that is sent again is then there
    /// twice. Default: `false`.
    #[serde(default)]
    pub append: bool,
    /// Only with `append`: end each message with a line break. Default: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newline: Option<bool>,
    /// Replace a file that is there. With `false` it stays, and a message with other bytes goes to
    /// `<name>.<write key>.<extension>` beside it. Not with `append`. Default: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overwrite_existing: Option<bool>,
    /// Create missing folders below `root`; without, a path in one is refused. Default: `true`.
    #[serde(default = "yes")]
    pub create_dirs: bool,
    /// Permissions of new files, three or four octal digits. Default: `"0640"`.
    #[serde(default = "mode")]
    #[schemars(regex(pattern = "^0?[0-7]{3}$"))]
    pub mode: String,
    /// Flush file and folder before a write counts as delivered. Without, nothing confirms that it
    /// is on the disk: a power cut can lose what was written. Default: `true`.
    #[serde(default = "yes")]
    pub fsync: bool,
}

/// Reads files: their lines as they are written, or each file as one message.
///
/// `mode: tail` follows files that grow. It goes on after a restart where the last accepted line
/// ended, reads a file that was renamed away to its end before the new one of its name, and starts
/// over, with new identities, in a file that was truncated. A line without its ending waits. A file
/// that is created *and* renamed away while the host is down is found only if `path` matches its
/// new name too (`app.log*`).
///
/// `mode: whole` takes each file as one message once it has stopped changing. A file that changes
/// later is a new message.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadConfig {
    /// The files, below the connection's `root`: one path, or a pattern with `*` and `?` within a
    /// name, `[a-z]`, and `**` for any folders. Hidden files are never matched.
    pub path: String,
    /// `tail` or `whole`. Default: `tail`.
    #[serde(default)]
    pub mode: Mode,
    /// Patterns of file names to leave out. Default: `["*.gz", "*.xz", "*.zst", "*.bz2", "*.tmp",
    /// "*.part"]`.
    #[serde(default = "exclude")]
    pub exclude: Vec<String>,
    /// The longest line, or largest file, that becomes a message. A longer line is passed over, a
    /// larger file left alone, with an error event. Default: `10MiB`, minimum: `1B`.
    #[serde(default = "max_body")]
    pub max_body: ByteSize,
    /// The messages' content type. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// How often files are looked at. Default: `250ms`, minimum: `10ms`.
    #[serde(default = "poll_interval")]
    pub poll_interval: HumanDuration,
    /// `tail` only: where reading starts in files that are there at the very first start, while the
    /// host has no position. Later files are read from their beginning. Default: `beginning`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    /// `tail` only: how long a file that was renamed away or deleted must be silent before it counts
    /// as complete and the next one of its name is begun. Default: `2s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_wait: Option<HumanDuration>,
    /// `whole` only: how long a file must be unchanged before it is taken. `0s` is right where
    /// files are renamed into the folder when they are complete. Default: `2s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet: Option<HumanDuration>,
    /// `whole` only: what becomes of a file that was accepted. Default: `keep`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<After>,
    /// `whole` with `after: move` only: the folder below `root` that accepted files are moved to. It
    /// is created when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_to: Option<String>,
}

/// How files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Each line is a message.
    #[default]
    Tail,
    /// Each file is a message.
    Whole,
}

/// Where reading starts at the very first start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// With the first line.
    #[default]
    Beginning,
    /// With the first line that ends later.
    End,
}

/// What becomes of an accepted file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum After {
    /// It stays and is remembered; at most 4,096 files at a time.
    #[default]
    Keep,
    /// It is deleted.
    Delete,
    /// It is moved to the folder `move_to`.
    Move,
}

fn yes() -> bool {
    true
}

fn mode() -> String {
    "0640".to_owned()
}

fn exclude() -> Vec<String> {
    ["*.gz", "*.xz", "*.zst", "*.bz2", "*.tmp", "*.part"]
        .map(str::to_owned)
        .to_vec()
}

fn max_body() -> ByteSize {
    ByteSize::from_mib(10)
}

fn poll_interval() -> HumanDuration {
    HumanDuration::from_millis(250)
}

impl ConnectionConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let root = self.root.as_os_str();
        let bad = root.is_empty() || root.to_str().is_none_or(|text| text.contains('\0'));
        bad.then(|| "`root`: expected the path of a folder".to_owned())
            .into_iter()
            .collect()
    }
}

impl WriteConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self, connection: &ConnectionConfig) -> Vec<String> {
        let mut faults = Vec::new();
        if let Some(path) = self.path.as_written()
            && !self.path.is_dynamic()
            && let Err(error) = check_relative(crate::files::below(&connection.root, path))
        {
            faults.push(format!("`path`: {error}"));
        }
        if self.newline.is_some() && !self.append {
            faults.push("`newline`: only with `append: true`".to_owned());
        }
        if self.overwrite_existing.is_some() && self.append {
            faults.push("`overwrite_existing`: not with `append: true`".to_owned());
        }
        if self.mode_bits().is_none() {
            faults.push("`mode`: expected octal digits like \"0640\"".to_owned());
        }
        faults
    }

    /// The permissions as a number.
    #[must_use]
    pub fn mode_bits(&self) -> Option<u32> {
        let digits = self.mode.bytes().all(|b| b.is_ascii_digit());
        let bits = u32::from_str_radix(&self.mode, 8).ok()?;
        (digits && bits <= 0o777 && self.mode.len() >= 3).then_some(bits)
    }

    /// Whether a file that is there stays.
    #[must_use]
    pub fn keeps_existing(&self) -> bool {
        self.overwrite_existing == Some(false)
    }
}

impl ReadConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if let Err(error) = Selection::new(Path::new("/"), &self.path, &self.exclude) {
            faults.push(format!("`path`: {error}"));
        }
        let tail = [
            ("start", self.start.is_some()),
            ("rotate_wait", self.rotate_wait.is_some()),
        ];
        let whole = [
            ("quiet", self.quiet.is_some()),
            ("after", self.after.is_some()),
            ("move_to", self.move_to.is_some()),
        ];
        let (other, only) = match self.mode {
            Mode::Tail => (whole.as_slice(), "whole"),
            Mode::Whole => (tail.as_slice(), "tail"),
        };
        for (field, _) in other.iter().filter(|(_, set)| *set) {
            faults.push(format!("`{field}`: only with `mode: {only}`"));
        }
        let moves = self.after == Some(After::Move);
        match &self.move_to {
            None if moves => {
                faults.push("`move_to`: expected a folder, for `after: move`".to_owned())
            }
            Some(_) if !moves => faults.push("`move_to`: only with `after: move`".to_owned()),
            Some(folder) => {
                if let Err(error) = check_relative(folder) {
                    faults.push(format!("`move_to`: {error}"));
                }
                if Path::new(&self.path).starts_with(folder) {
                    faults.push(format!("`move_to`: `path` reads from `{folder}`, so files moved there would come again"));
                }
            }
            None => {}
        }
        if self.max_body.bytes() == 0 {
            faults.push("`max_body`: expected at least 1B".to_owned());
        }
        if self.poll_interval.get().as_millis() < 10 {
            faults.push("`poll_interval`: expected at least 10ms".to_owned());
        }
        faults
    }
}
