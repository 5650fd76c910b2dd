//! Records of conformance runs: which server an operation's declaration was proven against.
//!
//! One JSON file per connector, written by a conformance run and read when docs/promises.md is
//! generated. A record carries the digest of the declaration it proved and of the plugin it ran;
//! once either is another, the record is stale and the page is not generated from it.

use consign_manifest::{Manifest, OperationDeclaration};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// The format of a proven file this crate writes and reads.
pub const PROVEN_FORMAT: u32 = 1;

/// What the server of a run was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ServerKind {
    /// The product itself.
    R,
    /// Somebody else's emulator.
    E,
    /// A mock driven by the vendor's published description.
    S,
    /// A contract fake of our own.
    N,
}

impl ServerKind {
    /// The words behind a server's name in the table; empty for the product itself.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::R => "",
            Self::E => "emulator",
            Self::S => "mock of the vendor's description",
            Self::N => "contract-tested, not run against the product",
        }
    }
}

/// One operation proven against one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proven {
    /// Operation id.
    pub operation: String,
    /// The server's name, as its maker writes it.
    pub server: String,
    /// Its version.
    pub version: String,
    /// What it was.
    pub kind: ServerKind,
    /// Digest of the plugin that ran, as the caller of [`check`] computes it.
    pub plugin_digest: String,
    /// [`declaration_digest`] of the declaration that was proven.
    pub declaration_digest: String,
    /// Day of the run, `YYYY-MM-DD`.
    pub date: String,
    /// Names of the scenarios that passed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scenarios: Vec<String>,
}

/// One connector's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvenFile {
    /// [`PROVEN_FORMAT`].
    pub format: u32,
    /// The connector's name.
    pub connector: String,
    /// Its runs.
    pub records: Vec<Proven>,
}

/// Why a proven file cannot be used. Each sentence names the operation and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProvenError {
    /// The text is no proven file; the caller names the file.
    #[error("not a proven file: {0}")]
    Unreadable(String),
    /// Written by a newer version.
    #[error("format {0} is newer than {PROVEN_FORMAT}, which this version reads")]
    Newer(u32),
    /// A record says what is no longer so, or of something that does not exist.
    #[error("{operation}: {what}; run `cargo xtask conformance {connector}` again")]
    Stale {
        /// The connector.
        connector: String,
        /// The operation.
        operation: String,
        /// What differs.
        what: String,
    },
}

impl ProvenFile {
    /// Reads one file's text.
    ///
    /// # Errors
    /// [`ProvenError::Unreadable`] and [`ProvenError::Newer`].
    pub fn parse(text: &str) -> Result<Self, ProvenError> {
        let file: Self =
            serde_json::from_str(text).map_err(|e| ProvenError::Unreadable(e.to_string()))?;
        if file.format > PROVEN_FORMAT {
            return Err(ProvenError::Newer(file.format));
        }
        for record in &file.records {
            if !is_day(&record.date) {
                return Err(ProvenError::Unreadable(format!(
                    "{}: `{}` is no day, expected YYYY-MM-DD",
                    record.operation, record.date
                )));
            }
        }
        Ok(file)
    }

    /// The file's text: stable order, one final newline.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut sorted = self.clone();
        sorted.records.sort_by(|a, b| {
            (&a.operation, &a.server, &a.version).cmp(&(&b.operation, &b.server, &b.version))
        });
        // A struct of strings and numbers always has a JSON form.
        let mut text = serde_json::to_string_pretty(&sorted).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Replaces the record of the same operation and server, or adds one.
    pub fn record(&mut self, proven: Proven) {
        self.records
            .retain(|r| !(r.operation == proven.operation && r.server == proven.server));
        self.records.push(proven);
    }
}

fn is_day(text: &str) -> bool {
    text.len() == 10
        && text.bytes().enumerate().all(|(i, b)| match i {
            4 | 7 => b == b'-',
            _ => b.is_ascii_digit(),
        })
}

/// Digest of a declaration: BLAKE3 over its JSON, 64 hex digits. The note is left out, since
/// rewording it changes nothing that a run proves.
#[must_use]
pub fn declaration_digest(declaration: &OperationDeclaration) -> String {
    let mut proved = declaration.clone();
    match &mut proved {
        OperationDeclaration::Sink(sink) => sink.note.clear(),
        OperationDeclaration::Source(source) => source.note.clear(),
    }
    let json = serde_json::to_vec(&proved).unwrap_or_default();
    blake3::hash(&json).to_hex().to_string()
}

/// All stale records of `files` beside what the plugins say today. `plugin_digests` maps a
/// connector to its plugin's digest; a connector that is missing there is not compared.
#[must_use]
pub fn check(
    files: &[ProvenFile],
    manifests: &[Manifest],
    plugin_digests: &BTreeMap<String, String>,
) -> Vec<ProvenError> {
    let mut stale = Vec::new();
    for file in files {
        for record in &file.records {
            if let Some(what) = stale_record(file, record, manifests, plugin_digests) {
                stale.push(ProvenError::Stale {
                    connector: file.connector.clone(),
                    operation: record.operation.clone(),
                    what,
                });
            }
        }
    }
    stale
}

fn stale_record(
    file: &ProvenFile,
    record: &Proven,
    manifests: &[Manifest],
    plugin_digests: &BTreeMap<String, String>,
) -> Option<String> {
    let Some((connector, operation)) = manifests
        .iter()
        .find_map(|m| m.operation(&record.operation))
    else {
        return Some("no plugin has this operation any more".to_owned());
    };
    if connector.name != file.connector {
        return Some(format!(
            "the file is of `{}`, the operation of `{}`",
            file.connector, connector.name
        ));
    }
    if declaration_digest(&operation.declaration) != record.declaration_digest {
        return Some(format!(
            "the declaration changed after it was proven against {} {}",
            record.server, record.version
        ));
    }
    match plugin_digests.get(&file.connector) {
        Some(digest) if *digest != record.plugin_digest => Some(format!(
            "the plugin changed after it was proven against {} {}",
            record.server, record.version
        )),
        _ => None,
    }
}

impl fmt::Display for Proven {
    /// As it stands in the table: `nats-server 2.10.27, 2026-11-30`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.server, self.version)?;
        if !self.kind.words().is_empty() {
            write!(f, " ({})", self.kind.words())?;
        }
        write!(f, ", {}", self.date)
    }
}
