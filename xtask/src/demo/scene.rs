//! Where a demo plays: a fresh folder under the target folder with the example's configuration, the
//! plugins, the destination table and free ports.

use super::Control;
use crate::error::{Context, Result, failed};
use crate::services::Pid;
use crate::workspace::{Profile, Workspace};
use rusqlite::Connection;
use std::fs::{self, File, TryLockError};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The example that the demo runs.
pub const EXAMPLE: &str = "examples/quickstart.yaml";

/// What the example listens on, and what the demo replaces with free ports.
const HOOKS: &str = "127.0.0.1:8080";
const CONSOLE: &str = "127.0.0.1:8640";

/// The destination table, as the example's `create_table` would make it, but with a counter: SQLite
/// runs the trigger for every insert that arrives, also for one that the unique index then drops.
const TABLE: &str = "
    CREATE TABLE webhooks (write_key TEXT, event, body);
    CREATE TABLE arrivals (count INTEGER NOT NULL);
    INSERT INTO arrivals VALUES (0);
    CREATE TRIGGER count_arrivals BEFORE INSERT ON webhooks
    BEGIN UPDATE arrivals SET count = count + 1; END;
";

/// What makes a repeat harmless; the control does without.
const UNIQUE_INDEX: &str = "CREATE UNIQUE INDEX webhooks_write_key ON webhooks (write_key);";

/// The stage of one demo.
#[derive(Debug)]
pub struct Scene {
    /// The working directory of the host.
    pub folder: PathBuf,
    /// The host binary.
    pub host: PathBuf,
    /// The configuration, in `folder`.
    pub config: PathBuf,
    /// Where webhooks go.
    pub hooks: SocketAddr,
    /// Where the host tells about itself.
    pub console: SocketAddr,
    /// The destination database.
    pub database: PathBuf,
    /// The destination folder.
    pub archive: PathBuf,
    /// Held while the demo runs: two at once would take each other's folder away.
    _lock: File,
}

impl Scene {
    /// Sets the stage. What an earlier demo left is removed, its host included.
    pub fn set(workspace: &Workspace, profile: Profile, control: Control) -> Result<Self> {
        let base = workspace.target.join("demo");
        fs::create_dir_all(&base).context(|| format!("cannot create {}", base.display()))?;
        let lock = lock(&base)?;
        end_leftover(&base.join("host.json"));
        let folder = base.join(match control {
            Control::Keys => "with-keys",
            Control::NoKeys => "without-keys",
        });
        if folder.exists() {
            fs::remove_dir_all(&folder).context(|| format!("cannot empty {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).context(|| format!("cannot create {}", folder.display()))?;
        let (hooks, console) = free_addresses()?;
        let text = with_addresses(&read_example(workspace)?, hooks, console)?;
        let config = lay_out(workspace, profile, &folder, &text)?;
        let scene = Self {
            host: workspace.host(profile),
            config,
            hooks,
            console,
            database: folder.join("shop.db"),
            archive: folder.join("archive"),
            folder,
            _lock: lock,
        };
        fs::create_dir(&scene.archive)
            .context(|| format!("cannot create {}", scene.archive.display()))?;
        make_table(&scene.database, control)
            .context(|| format!("cannot make {}", scene.database.display()))?;
        Ok(scene)
    }

    /// The file that names the running host, by which the next demo ends one that was left behind.
    pub fn host_file(&self) -> PathBuf {
        self.folder.with_file_name("host.json")
    }
}

/// Puts the example as it is into `folder`, which keeps what is in it, with the plugins beside it.
pub fn lay_out_quickstart(
    workspace: &Workspace,
    profile: Profile,
    folder: &Path,
) -> Result<PathBuf> {
    fs::create_dir_all(folder).context(|| format!("cannot create {}", folder.display()))?;
    lay_out(workspace, profile, folder, &read_example(workspace)?)
}

fn read_example(workspace: &Workspace) -> Result<String> {
    let example = workspace.root.join(EXAMPLE);
    fs::read_to_string(&example).context(|| format!("cannot read {}", example.display()))
}

/// Writes a configuration into `folder` and puts the plugins beside it.
fn lay_out(workspace: &Workspace, profile: Profile, folder: &Path, text: &str) -> Result<PathBuf> {
    let config = folder.join("quickstart.yaml");
    fs::write(&config, text).context(|| format!("cannot write {}", config.display()))?;
    let link = folder.join("plugins");
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link).context(|| format!("cannot replace {}", link.display()))?;
    }
    std::os::unix::fs::symlink(workspace.plugin_folder(profile), &link)
        .context(|| format!("cannot create {}", link.display()))?;
    Ok(config)
}

/// The example with other addresses in its settings (not in its comments).
fn with_addresses(text: &str, hooks: SocketAddr, console: SocketAddr) -> Result<String> {
    let mut replaced = text.to_owned();
    for (old, new) in [(HOOKS, hooks), (CONSOLE, console)] {
        let old = format!("listen: \"{old}\"");
        if replaced.matches(&old).count() != 1 {
            return failed(format!(
                "{EXAMPLE} should hold `{old}` exactly once: the demo puts a free port there"
            ));
        }
        replaced = replaced.replace(&old, &format!("listen: \"{new}\""));
    }
    Ok(replaced)
}

/// Makes the destination table.
fn make_table(path: &Path, control: Control) -> rusqlite::Result<()> {
    let database = Connection::open(path)?;
    database.execute_batch(TABLE)?;
    if control == Control::Keys {
        database.execute_batch(UNIQUE_INDEX)?;
    }
    Ok(())
}

fn lock(base: &Path) -> Result<File> {
    let path = base.join("lock");
    let file = File::create(&path).context(|| format!("cannot create {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => failed("another demo is running in this target folder"),
        Err(TryLockError::Error(error)) => {
            failed(format!("cannot lock {}: {error}", path.display()))
        }
    }
}

/// Ends the host of an earlier demo that was itself killed.
fn end_leftover(path: &Path) {
    let left = fs::read(path)
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Pid>(&bytes).ok());
    if let Some(pid) = left {
        pid.signal(rustix::process::Signal::KILL);
        pid.wait_gone(Duration::from_secs(5));
        // Gone or not, the file has done its work; a host that stays shows as a port in use.
        let _ = fs::remove_file(path);
    }
}

/// Two free addresses on the loopback interface.
fn free_addresses() -> Result<(SocketAddr, SocketAddr)> {
    let both = || {
        // Both are held until both are chosen, so that they are not the same.
        let hooks = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let console = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok((hooks.local_addr()?, console.local_addr()?))
    };
    let free: std::io::Result<(SocketAddr, SocketAddr)> = both();
    free.context(|| "no port is free".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_has_the_addresses_that_the_demo_replaces() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = fs::read_to_string(root.join(EXAMPLE)).unwrap();
        let (hooks, console) = (
            "127.0.0.1:1".parse().unwrap(),
            "127.0.0.1:2".parse().unwrap(),
        );
        let replaced = with_addresses(&text, hooks, console).unwrap();
        assert!(replaced.contains("listen: \"127.0.0.1:1\""));
        assert!(replaced.contains("listen: \"127.0.0.1:2\""));
        let error = with_addresses("{}", hooks, console)
            .unwrap_err()
            .to_string();
        assert!(error.contains("exactly once"), "{error}");
    }

    #[test]
    fn an_insert_that_the_index_drops_is_counted_as_an_arrival() {
        let folder = tempfile::tempdir().unwrap();
        for (control, rows) in [(Control::Keys, 1), (Control::NoKeys, 2)] {
            let path = folder.path().join(format!("{control:?}.db"));
            make_table(&path, control).unwrap();
            let database = Connection::open(&path).unwrap();
            let conflict = match control {
                Control::Keys => " ON CONFLICT (write_key) DO NOTHING",
                Control::NoKeys => "",
            };
            let insert = format!("INSERT INTO webhooks VALUES ('k', 'e', 'b'){conflict}");
            for _ in 0..2 {
                database.execute(&insert, []).unwrap();
            }
            let count = |sql: &str| -> i64 { database.query_row(sql, [], |r| r.get(0)).unwrap() };
            assert_eq!(count("SELECT count(*) FROM webhooks"), rows);
            assert_eq!(count("SELECT count FROM arrivals"), 2);
        }
    }
}
