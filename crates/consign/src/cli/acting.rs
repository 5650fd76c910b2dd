//! Commands that look into failed messages and act on a host.

use super::Target;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;

/// Which host: one that runs, or a stopped one's data folder.
#[derive(Debug, Clone, Args)]
pub struct Place {
    #[command(flatten)]
    pub target: Target,
    /// Work on a stopped host's data folder instead.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub data_dir: Option<PathBuf>,
}

/// `consign failed …`.
#[derive(Debug, Subcommand)]
pub enum Failed {
    /// List failed messages, or their causes.
    List {
        #[command(flatten)]
        place: Place,
        /// Group them: one line for each code on one send over one connection.
        #[arg(long)]
        causes: bool,
        /// With --causes: those with none waiting, too.
        #[arg(long, requires = "causes")]
        all: bool,
        #[command(flatten)]
        filter: Filter,
    },
    /// Show one failed message with its whole history, redacted.
    Show {
        #[command(flatten)]
        place: Place,
        /// The failed message.
        id: i64,
        /// Only its body, byte for byte and not redacted.
        #[arg(long)]
        body: bool,
        /// Only the body as the source handed it over, byte for byte and not redacted.
        #[arg(long, conflicts_with = "body")]
        original: bool,
    },
    /// Send the stored write once more, with its key; it joins the end of its lane.
    SendAgain(ActArgs),
    /// Send the original message through today's routes, with new keys. Shows what would happen; --yes does
    /// it.
    RouteAgain {
        #[command(flatten)]
        act: ActArgs,
        /// Do it.
        #[arg(long)]
        yes: bool,
    },
    /// Change body or headers of a parked message; it stays parked.
    Edit {
        #[command(flatten)]
        place: Place,
        /// The failed message.
        id: i64,
        /// The new body; `-` reads it from standard input.
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        body_file: Option<PathBuf>,
        /// Set a header; with an empty value it is taken out.
        #[arg(long = "header", value_name = "NAME=VALUE")]
        headers: Vec<String>,
        /// Keep the key: where the message has landed already, a destination that drops repeats keeps what
        /// it has.
        #[arg(long)]
        same_key: bool,
        /// Give it a new key: where the message has landed already, the edited one is a further write.
        #[arg(long, conflicts_with = "same_key")]
        new_key: bool,
    },
    /// Give messages up. What waits for them is dropped, or released if so configured.
    Skip(ActArgs),
    /// Take a skip back.
    Restore(ActArgs),
    /// Say that messages which may have landed have: they count as delivered, and what waits for them is
    /// released.
    Confirm(ActArgs),
    /// Send messages to another send, with a key derived from the old one.
    Move {
        #[command(flatten)]
        act: ActArgs,
        /// Where to.
        #[arg(long, value_name = "ADAPTER/ROUTE/SEND")]
        to: String,
    },
    /// Delete messages for good. Says what would be deleted; --yes does it.
    Purge {
        #[command(flatten)]
        act: ActArgs,
        /// Do it.
        #[arg(long)]
        yes: bool,
    },
    /// Write whole records to a file (0600), one JSON document a line; `import` reads them.
    Export {
        #[command(flatten)]
        place: Place,
        /// The file; `-` is standard output.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Without secrets, auth headers and configured fields: to be read, never sent.
        #[arg(long)]
        redacted: bool,
        #[command(flatten)]
        filter: Filter,
    },
    /// Read exported records, or dead letters that an error handler wrote; those that are there already
    /// stay as they are.
    Import {
        #[command(flatten)]
        place: Place,
        /// The file; `-` is standard input.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

/// An act on failed messages.
#[derive(Debug, Clone, Args)]
pub struct ActArgs {
    #[command(flatten)]
    pub place: Place,
    /// The failed messages; without them, all that the filter finds, as a job.
    pub ids: Vec<i64>,
    #[command(flatten)]
    pub filter: Filter,
    /// All of them.
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// At most so many a second, as a job.
    #[arg(long, value_name = "PER_SECOND")]
    pub rate: Option<f64>,
    /// Wait until the job is through.
    #[arg(long)]
    pub wait: bool,
}

/// Which failed messages.
#[derive(Debug, Clone, Default, Args)]
pub struct Filter {
    /// In this state; default: parked (list: any).
    #[arg(long, value_name = "STATE")]
    pub state: Vec<String>,
    /// Of this adapter.
    #[arg(long)]
    pub adapter: Option<String>,
    /// Of this route.
    #[arg(long)]
    pub route: Option<String>,
    /// Of this send.
    #[arg(long)]
    pub send: Option<String>,
    /// Over this connection.
    #[arg(long)]
    pub connection: Option<String>,
    /// With this code.
    #[arg(long)]
    pub code: Option<String>,
    /// Of this cause, by the id that `list --causes` shows.
    #[arg(long)]
    pub cause: Option<i64>,
    /// Parked for this reason (refused, exhausted, may_have_landed …).
    #[arg(long)]
    pub reason: Option<String>,
    /// Whether it has landed: no or maybe.
    #[arg(long)]
    pub applied: Option<AppliedArg>,
    /// With this write key.
    #[arg(long, value_name = "HEX")]
    pub key: Option<String>,
    /// Made from this message.
    #[arg(long, value_name = "ID")]
    pub message: Option<String>,
    /// Parked within this time (`2h`).
    #[arg(long, value_name = "DURATION")]
    pub since: Option<String>,
    /// Parked before this time (`10m` ago).
    #[arg(long, value_name = "DURATION")]
    pub until: Option<String>,
    /// Whose error, code or message id contains this text.
    #[arg(long)]
    pub text: Option<String>,
    /// With a greater id than this: the next page.
    #[arg(long, value_name = "ID")]
    pub after: Option<i64>,
    /// At most so many; default for lists: 1000.
    #[arg(long)]
    pub limit: Option<u32>,
}

/// Whether a write has landed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AppliedArg {
    /// It has not.
    No,
    /// Nobody knows.
    Maybe,
}

/// `consign jobs …`.
#[derive(Debug, Args)]
pub struct JobsArgs {
    #[command(flatten)]
    pub place: Place,
    /// One job, with what it could not do.
    pub id: Option<i64>,
    /// Pause it.
    #[arg(long, requires = "id", conflicts_with_all = ["resume", "cancel"])]
    pub pause: bool,
    /// Go on with it.
    #[arg(long, requires = "id", conflicts_with = "cancel")]
    pub resume: bool,
    /// End it; what is done stays done.
    #[arg(long, requires = "id")]
    pub cancel: bool,
    /// Wait until it is through.
    #[arg(long, requires = "id")]
    pub wait: bool,
}

/// What `consign wait` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WaitFor {
    /// The process answers.
    Live,
    /// It makes progress.
    Ready,
    /// Nothing waits in its lanes.
    Drained,
    /// No outage report is open.
    Calm,
}
