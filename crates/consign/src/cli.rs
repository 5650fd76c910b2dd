//! The command line: what can be typed, and nothing else.

pub mod acting;

use crate::commands::new::PluginTemplate;
use clap::{Args, Parser, Subcommand, ValueHint};
use std::path::PathBuf;

/// Carries messages from sources to destinations and says what it promises for each write.
#[derive(Debug, Parser)]
#[command(name = "consign", version, max_term_width = 100)]
pub struct Cli {
    /// One JSON document on stdout; errors as JSON on stderr.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the host. SIGTERM drains; a second one stops at once.
    Run {
        /// The host's configuration.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Check configurations and say what each send and each route promises.
    Check {
        /// Configurations, or folders of them.
        #[arg(required = true, value_hint = ValueHint::AnyPath)]
        paths: Vec<PathBuf>,
        /// Also connect to the destinations and inspect what is really there. No message is written; what a
        /// connection or send is told to create (`create_table`, a folder) is created.
        #[arg(long)]
        live: bool,
        /// Warnings and unset secrets are errors.
        #[arg(long)]
        strict: bool,
    },
    /// Run messages through the routes without sending, and compare with what is expected.
    Test {
        /// The host's configuration.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The cases (YAML). A message without `time_unix_ms` has the time of the run; its `.id` is zeros.
        #[arg(value_hint = ValueHint::FilePath)]
        cases: PathBuf,
        /// Write what came out into the cases file as what is expected.
        #[arg(long)]
        bless: bool,
    },
    /// Say which route claims a message and why the others do not; or what an event code means.
    Explain {
        /// A configuration, or an event code (`gate_closed`); left out: every code.
        subject: Option<String>,
        /// The message, a JSON document with `body` and optionally `headers`, `key`, `source`,
        /// `time_unix_ms` (default: now), with a configuration; `-` reads it from standard input.
        message: Option<String>,
        /// The adapter, when the configuration has several.
        #[arg(long)]
        adapter: Option<String>,
    },
    /// What plugins there are and what they contain.
    Plugins(PluginsArgs),
    /// Start something new.
    New {
        #[command(subcommand)]
        what: New,
    },
    /// What each operation of the plugins promises.
    Promises {
        /// Folders of plugins; default: `./plugins`, then the folder beside the program.
        #[arg(long = "plugins", value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        folders: Vec<PathBuf>,
        /// The promise table as Markdown.
        #[arg(long)]
        markdown: bool,
    },
    /// The JSON schema of a configuration, with every plugin's own settings.
    Schema {
        /// Folders of plugins; default: `./plugins`, then the folder beside the program.
        #[arg(long = "plugins", value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        folders: Vec<PathBuf>,
    },
    /// Show the effective configuration.
    Show {
        #[command(subcommand)]
        what: Show,
    },
    /// Compile and run one VRL expression on a message.
    Vrl {
        /// The expression.
        expression: String,
        /// The message (JSON document with `body` …); `-` reads it from standard input; default: empty.
        #[arg(long)]
        message: Option<String>,
    },
    /// What happened, newest last.
    Events {
        #[command(flatten)]
        target: Target,
        /// Read a host's data folder instead, also of one that is stopped.
        #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        data_dir: Option<PathBuf>,
        /// Only this event code.
        #[arg(long)]
        code: Option<String>,
        /// Only this level or worse: debug, info, warn, error.
        #[arg(long)]
        level: Option<String>,
        /// Only this adapter.
        #[arg(long)]
        adapter: Option<String>,
        /// At most this many.
        #[arg(long, default_value_t = 100)]
        limit: u32,
        /// Go on printing as events happen; one JSON document a line with --jsonl.
        #[arg(long)]
        follow: bool,
        /// One JSON document a line.
        #[arg(long)]
        jsonl: bool,
    },
    /// How a running host is doing.
    Status {
        #[command(flatten)]
        target: Target,
        /// Show it again and again; with --json one document a line.
        #[arg(long)]
        watch: bool,
    },
    /// What each time a destination was away came to, newest first.
    Outages {
        #[command(flatten)]
        place: acting::Place,
        /// Only of this connection.
        #[arg(long)]
        connection: Option<String>,
        /// At most this many.
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
    /// What became of a message: a message id, a write key, a client's idempotency key or an identity.
    Trace {
        #[command(flatten)]
        target: Target,
        /// The id or key.
        what: String,
    },
    /// Treat a connection as if its destination were away, without touching the destination.
    Drill {
        #[command(flatten)]
        target: Target,
        /// The connection.
        #[arg(long)]
        connection: String,
        /// For how long.
        #[arg(long = "for", value_name = "DURATION", default_value = "30s")]
        duration: String,
        /// Let requests out and throw their answers away. Sends that do not drop repeats get real copies;
        /// --yes says that this is wanted.
        #[arg(long)]
        swallow_replies: bool,
        /// Do it although copies may be made.
        #[arg(long)]
        yes: bool,
        /// Wait for its end.
        #[arg(long)]
        wait: bool,
    },
    /// Pause an adapter's source, a connection or a lane; it stays paused over a restart.
    Pause {
        #[command(flatten)]
        target: Target,
        /// Its name; `adapter:NAME` or `connection:NAME` where a name is both.
        subject: String,
    },
    /// Go on with what was paused. A lane tries what waits in it at once.
    Resume {
        #[command(flatten)]
        target: Target,
        /// Its name.
        subject: String,
    },
    /// Have a running host read its configuration file again. With an error in it nothing changes.
    Reload {
        #[command(flatten)]
        target: Target,
    },
    /// Wait for a running host. Exit code 4 when it does not come in time.
    Wait {
        #[command(flatten)]
        target: Target,
        /// What for.
        #[arg(value_enum)]
        what: acting::WaitFor,
        /// With `drained`: only these lanes.
        lanes: Vec<String>,
        /// How long.
        #[arg(long, default_value = "60s", value_name = "DURATION")]
        timeout: String,
    },
    /// Failed messages: look into them, send them again, edit, skip, move.
    #[command(subcommand)]
    Failed(Box<acting::Failed>),
    /// What a stopped host's folder holds: look, check, carry elsewhere.
    Buffer {
        #[command(subcommand)]
        act: Buffer,
    },
    /// Bulk work under way and done.
    Jobs(acting::JobsArgs),
    /// The shell's completion script.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Write the generated documentation into a folder.
    #[command(hide = true)]
    Gen {
        /// Where to.
        folder: PathBuf,
        /// Folders of plugins.
        #[arg(long = "plugins", value_name = "FOLDER")]
        folders: Vec<PathBuf>,
        /// Folder of proven records, one JSON file a connector.
        #[arg(long)]
        proven: Option<PathBuf>,
        /// JSON file with the digest of each connector's sources, to compare the records with.
        #[arg(long)]
        source_digests: Option<PathBuf>,
    },
}

/// `consign plugins`.
#[derive(Debug, Args)]
pub struct PluginsArgs {
    /// Folders of plugins; default: `./plugins`, then the folder beside the program.
    #[arg(long = "plugins", value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub folders: Vec<PathBuf>,
    #[command(subcommand)]
    pub command: Option<PluginsCommand>,
}

/// `consign plugins …`.
#[derive(Debug, Subcommand)]
pub enum PluginsCommand {
    /// Check one plugin file and say everything that is wrong with it.
    Verify {
        /// The .so file.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// The reference of the plugins, as Markdown: settings, declarations, examples.
    Docs {
        /// Only this plugin.
        name: Option<String>,
    },
    /// Write the digests of the plugins into a lock: a host whose configuration stands beside it loads
    /// exactly these files.
    Lock {
        /// The lock.
        #[arg(default_value = "plugins.lock", value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

/// `consign new …`.
#[derive(Debug, Subcommand)]
pub enum New {
    /// A plugin project that builds and is tested, in a folder of its name.
    Plugin {
        /// Its name, `snake_case`.
        name: String,
        /// What it is.
        #[arg(long, value_enum, default_value = "sink")]
        kind: PluginTemplate,
        /// The folder to make it in.
        #[arg(long, default_value = ".", value_hint = ValueHint::DirPath)]
        into: PathBuf,
        /// Take the SDK from this folder (a checkout's `sdk`, or unpacked packages) instead of a registry.
        #[arg(long, value_hint = ValueHint::DirPath)]
        sdk: Option<PathBuf>,
    },
}

/// `consign show …`.
#[derive(Debug, Subcommand)]
pub enum Show {
    /// With defaults filled in and secrets hidden.
    Config {
        /// The host's configuration.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

/// `consign buffer …`.
#[derive(Debug, Subcommand)]
pub enum Buffer {
    /// Lanes, pending writes and the log, from the newest checkpoint and the log behind it. Writes nothing.
    Inspect {
        #[command(flatten)]
        at: Stopped,
    },
    /// Read every byte that is still needed, and name file and offset of what does not check. Writes nothing.
    Verify {
        #[command(flatten)]
        at: Stopped,
    },
    /// Pending writes, one JSON document a line, to be imported elsewhere. The folder stays as it is.
    Export {
        #[command(flatten)]
        at: Stopped,
        /// Into this new file (mode 0600) instead of standard output.
        #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Accept an export's writes into the stopped host of a configuration, under their old keys. Writes that are
    /// pending there already are passed over.
    Import {
        /// The host's configuration: its sends are the lanes.
        #[arg(value_name = "CONFIG", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// What `consign buffer export` wrote; `-` reads standard input.
        #[arg(value_name = "EXPORT", value_hint = ValueHint::FilePath)]
        from: PathBuf,
        /// Only this lane, `adapter/route/send`; may be given several times.
        #[arg(long = "lane", value_name = "LANE")]
        lanes: Vec<String>,
        /// Check every line, accept none.
        #[arg(long)]
        dry_run: bool,
    },
}

/// A stopped host's folder.
#[derive(Debug, Args)]
pub struct Stopped {
    /// The host's data_dir, or its configuration.
    #[arg(value_name = "DATA_DIR", value_hint = ValueHint::AnyPath)]
    pub folder: PathBuf,
    /// Only this lane, `adapter/route/send`; may be given several times.
    #[arg(long = "lane", value_name = "LANE")]
    pub lanes: Vec<String>,
}

/// Which running host a command speaks to.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// The running host: its `console.listen`.
    #[arg(
        long,
        env = "CONSIGN_HOST",
        default_value = "http://127.0.0.1:8640",
        value_name = "URL"
    )]
    pub host: String,
    /// The host's access token.
    #[arg(
        long,
        env = "CONSIGN_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    pub token: Option<String>,
}
