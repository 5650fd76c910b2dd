//! The host as a process: started, killed, started again, stopped; never left behind.

use super::scene::Scene;
use super::watch::Watch;
use crate::error::{Context, Error, Result, failed};
use crate::services::Pid;
use rustix::process::Signal;
use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// From start to listening, at most: recovery of the buffer included, on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(90);

/// From SIGTERM to the end, at most.
const DRAIN_WITHIN: Duration = Duration::from_secs(90);

/// Lines of the host's log that an error shows.
const LOG_LINES: usize = 8;

/// A running host. Dropping it kills the process.
#[derive(Debug)]
pub struct Host {
    child: Option<Child>,
    log: PathBuf,
    file: PathBuf,
}

impl Host {
    /// Starts the host and waits until it takes connections. Returns how long that took.
    pub fn start(scene: &Scene, watch: &Watch) -> Result<(Self, Duration)> {
        let log = scene.folder.join("host.log");
        let open = || {
            let file = File::options().create(true).append(true).open(&log)?;
            Ok((file.try_clone()?, file))
        };
        let opened: std::io::Result<(File, File)> = open();
        let (out, err) = opened.context(|| format!("cannot open {}", log.display()))?;
        let since = Instant::now();
        let child = Command::new(&scene.host)
            .current_dir(&scene.folder)
            .arg("run")
            .arg(&scene.config)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            // An interrupt typed at the terminal is for the demo, which then ends the host itself.
            .process_group(0)
            .spawn()
            .context(|| format!("cannot start {}", scene.host.display()))?;
        let mut host = Self {
            child: Some(child),
            log,
            file: scene.host_file(),
        };
        host.note_process();
        while TcpStream::connect_timeout(&scene.hooks, Duration::from_secs(1)).is_err() {
            watch.check()?;
            host.check()?;
            if since.elapsed() > START_WITHIN {
                return failed(format!(
                    "the host did not listen after {START_WITHIN:?}:\n{}",
                    host.log_end()
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok((host, since.elapsed()))
    }

    /// An error when the host has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        let ended = match &mut self.child {
            Some(child) => child
                .try_wait()
                .context(|| "cannot watch the host".into())?,
            None => None,
        };
        match ended {
            None => Ok(()),
            Some(status) => failed(format!(
                "the host ended by itself with {status}:\n{}",
                self.log_end()
            )),
        }
    }

    /// `kill -9`: the process is gone when this returns.
    pub fn kill(mut self) -> Result<()> {
        self.check()?;
        self.end();
        Ok(())
    }

    /// SIGTERM, and waits for the host to drain and end by itself.
    pub fn stop(mut self) -> Result<()> {
        self.check()?;
        if let Some(pid) = self.child.as_ref().and_then(|child| Pid::of(child.id())) {
            pid.signal(Signal::TERM);
            if !pid.wait_gone(DRAIN_WITHIN) {
                return failed(format!(
                    "the host had not ended {DRAIN_WITHIN:?} after SIGTERM:\n{}",
                    self.log_end()
                ));
            }
        }
        let status = match self.child.take() {
            Some(mut child) => child.wait().context(|| "cannot wait for the host".into())?,
            None => return Ok(()),
        };
        let _ = fs::remove_file(&self.file);
        if status.success() {
            Ok(())
        } else {
            Err(Error::Failed(format!(
                "the host ended with {status} after SIGTERM:\n{}",
                self.log_end()
            )))
        }
    }

    fn note_process(&self) {
        let pid = self.child.as_ref().and_then(|child| Pid::of(child.id()));
        if let Some(text) = pid.and_then(|pid| serde_json::to_vec(&pid).ok()) {
            // Only a help for the next demo, should this one be killed.
            let _ = fs::write(&self.file, text);
        }
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            // SIGKILL fails only when the process has ended already.
            let _ = child.kill();
            let _ = child.wait();
            let _ = fs::remove_file(&self.file);
        }
    }

    /// The last lines of the host's log, and where it is.
    fn log_end(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let skip = lines.len().saturating_sub(LOG_LINES);
        let end: Vec<&str> = lines.into_iter().skip(skip).collect();
        format!("{}\n(from {})", end.join("\n"), self.log.display())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
    }
}
