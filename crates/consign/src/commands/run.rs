//! `consign run`: the host, until it is told to stop.

use crate::output::{CliError, Kind};
use crate::problems;
use consign_runtime::reload::{ConfigSource, ReloadError};
use consign_runtime::{Copies, Host, StartError};
use std::path::Path;
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The file in the data folder that has the token for commands.
pub const TOKEN_FILE: &str = "token";

pub fn run(file: &Path) -> Result<(), CliError> {
    log_to_stderr();
    let plan = problems::plan_with(file, Copies::InDataDir)?;
    if !plan.unset_secrets.is_empty() {
        let fatal: Vec<_> = plan
            .unset_secrets
            .iter()
            .map(|p| consign_config::Problem::error(&p.place, p.code, p.message.clone()))
            .collect();
        return Err(problems::error(&fatal));
    }
    if !plan.warnings.is_empty() {
        eprintln!("{}", problems::text(&plan.warnings));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("consign")
        .build()
        .map_err(|error| CliError::failed(format!("cannot start: {error}")))?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        // Bound before anything is opened: a port in use is an error of the configuration.
        let token = plan
            .config
            .console
            .as_ref()
            .and_then(|console| console.token.as_ref().map(ToString::to_string))
            .or_else(|| {
                std::env::var("CONSIGN_TOKEN")
                    .ok()
                    .filter(|token| !token.is_empty())
            });
        if token.as_ref().is_some_and(String::is_empty) {
            let place = plan.config.console.as_ref().map(|c| c.listen.place().to_string());
            return Err(CliError::input(format!(
                "{}: error: console.token is empty; leave it out, or set the secret it is filled in from",
                place.unwrap_or_default()
            )));
        }
        let console = match &plan.config.console {
            Some(settings) => Some(bind(settings, token.is_some()).await?),
            None => None,
        };
        let host = Host::start(plan).await.map_err(|error| match error {
            StartError::DataDir { .. } | StartError::Lane { .. } => {
                CliError::new(Kind::Input, error.to_string())
            }
        })?;
        host.reloads_from(ConfigSource {
            path: file.to_owned(),
            environment: Arc::new(problems::Surroundings),
            copies: Copies::InDataDir,
        });
        started(&host, console.as_ref());
        let served = match console {
            Some(listener) => {
                let login = login(&host, token)?;
                let view = consign_runtime::view::View::new(Arc::clone(&host));
                Some(tokio::spawn(consign_console::serve(
                    listener,
                    Arc::new(view),
                    login,
                )))
            }
            None => None,
        };
        let clean = until_stopped(&host, file, &mut signals).await?;
        if let Some(served) = served {
            served.abort();
        }
        if clean {
            Ok(())
        } else {
            Err(CliError::failed(
                "stopped with requests unanswered; their writes may have landed",
            ))
        }
    })
}

/// The first lines of the log: what runs, where it keeps its data and where it can be looked at.
fn started(host: &Host, console: Option<&tokio::net::TcpListener>) {
    let console = console.and_then(|listener| listener.local_addr().ok());
    tracing::info!(
        adapters = host.adapters().len(),
        data_dir = %host.plan().config.data_dir().display(),
        console = console.map(|address| format!("http://{address}")).unwrap_or_else(|| "none".to_owned()),
        "consign {} started",
        env!("CARGO_PKG_VERSION")
    );
}

/// What commands must present. Where the operator set no token one is made, readable by the host's
/// own user alone: whoever can read it could as well write the data folder itself.
fn login(host: &Host, token: Option<String>) -> Result<consign_console::Login, CliError> {
    if token.is_some() {
        return Ok(token.into());
    }
    let path = host.plan().config.data_dir().join(TOKEN_FILE);
    let acting = consign_runtime::token(&path)
        .map_err(|error| CliError::failed(format!("{}: {error}", path.display())))?;
    let shown = std::fs::canonicalize(&path).unwrap_or(path);
    Ok(consign_console::Login {
        token: None,
        acting: Some(acting),
        token_file: Some(shown),
    })
}

async fn bind(
    settings: &consign_config::Console,
    has_token: bool,
) -> Result<tokio::net::TcpListener, CliError> {
    let listen = settings.listen.as_str();
    let place = settings.listen.place();
    let listener = tokio::net::TcpListener::bind(listen)
        .await
        .map_err(|error| {
            let fix = match error.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "another program listens there; choose another console.listen or stop it"
                }
                _ => "check console.listen",
            };
            CliError::input(format!(
                "{place}: error: cannot listen on {listen}: {error}; {fix}"
            ))
        })?;
    let address = listener.local_addr().map_err(CliError::failed)?;
    if consign_console::token_needed(&address) && !has_token {
        return Err(CliError::input(format!(
            "{place}: error: {listen} can be reached from other machines; set console.token or CONSIGN_TOKEN, or listen on 127.0.0.1"
        )));
    }
    Ok(listener)
}

/// The signals a host listens to, from before it opens anything: one that comes during a long start must
/// not end the process without a drain.
struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
    /// A file size limit then answers a write with an error instead of killing the process without a word.
    _file_too_large: Signal,
}

/// SIGXFSZ on Linux (signal(7)); tokio has no name for it.
const SIGXFSZ: i32 = 25;

impl Signals {
    fn new() -> Result<Self, CliError> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| CliError::failed(format!("cannot listen to signals: {error}")))
        };
        Ok(Self {
            term: listen(SignalKind::terminate())?,
            int: listen(SignalKind::interrupt())?,
            hup: listen(SignalKind::hangup())?,
            _file_too_large: listen(SignalKind::from_raw(SIGXFSZ))?,
        })
    }

    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.term.recv() => Told::Stop,
            _ = self.int.recv() => Told::Stop,
            _ = self.hup.recv() => Told::Reload,
        }
    }

    /// The first SIGTERM or SIGINT.
    async fn stop(&mut self) {
        while self.next().await != Told::Stop {
            tracing::info!("SIGHUP: the host is stopping; nothing is reloaded");
        }
    }
}

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Stop,
    Reload,
}

/// SIGHUP reloads; the first SIGTERM or SIGINT drains; a second one ends the process at once.
async fn until_stopped(
    host: &Arc<Host>,
    file: &Path,
    signals: &mut Signals,
) -> Result<bool, CliError> {
    while signals.next().await == Told::Reload {
        reload(host, file).await;
    }
    tracing::info!(
        "stopping: sources first, then what is in flight; a second signal stops at once"
    );
    tokio::select! {
        clean = host.stop() => Ok(clean),
        () = signals.stop() => Err(CliError::failed("stopped at once; what was in flight may have landed")),
    }
}

/// Reads the file again. The log says what changed, or what is wrong with it.
async fn reload(host: &Arc<Host>, file: &Path) {
    tracing::info!(config = %file.display(), "SIGHUP: the configuration is read again");
    match host.reload().await {
        Ok(report) => {
            for warning in &report.warnings {
                tracing::warn!("{warning}");
            }
            for what in &report.needs_restart {
                tracing::warn!("{what} differs in the file and needs a restart");
            }
            tracing::info!("{}", report.sentence());
        }
        Err(error) => {
            tracing::error!("the configuration was not reloaded: {error}");
            if let ReloadError::Rejected(problems) = &error {
                for line in problems::text(problems).lines() {
                    tracing::error!("{line}");
                }
            }
        }
    }
}

fn log_to_stderr() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("CONSIGN_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    drop(
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .try_init(),
    );
}
