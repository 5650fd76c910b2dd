//! Processes that outlive the command that started them: known by id *and* start time, so that a
//! recycled id is never signalled.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A process of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pid {
    /// The process id.
    pub id: u32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
}

impl Pid {
    /// Looks a running process up; none when it is gone already.
    pub fn of(id: u32) -> Option<Self> {
        start_time(id).map(|started| Self { id, started })
    }

    /// Whether this very process runs (a zombie does not).
    pub fn is_alive(self) -> bool {
        start_time(self.id) == Some(self.started)
    }

    /// Sends a signal, unless the process is gone.
    pub fn signal(self, signal: rustix::process::Signal) {
        if !self.is_alive() {
            return;
        }
        let id = i32::try_from(self.id)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(id) = id {
            // The only failure is that the process ended meanwhile, which is what is wanted.
            let _ = rustix::process::kill_process(id, signal);
        }
    }

    /// Waits until the process is gone; false when it is still there after `within`.
    pub fn wait_gone(self, within: Duration) -> bool {
        let end = Instant::now() + within;
        while self.is_alive() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

/// Field 22 of /proc/ID/stat; none when the process is gone or a zombie.
fn start_time(id: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The program's name stands in parentheses and may hold anything; fields count from after it.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    if matches!(fields.next(), Some("Z" | "X")) {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_recycled_process_id_is_not_taken_for_the_process() {
        let mut child = Command::new("sleep").arg("30").spawn().unwrap();
        let pid = Pid::of(child.id()).unwrap();
        assert!(pid.is_alive());
        let other = Pid {
            started: pid.started + 1,
            ..pid
        };
        assert!(!other.is_alive());
        other.signal(rustix::process::Signal::KILL);
        assert!(pid.is_alive(), "a process of another start time was killed");
        pid.signal(rustix::process::Signal::KILL);
        // Before it is reaped it is a zombie, which counts as gone.
        assert!(pid.wait_gone(Duration::from_secs(5)));
        child.wait().unwrap();
        assert_eq!(Pid::of(pid.id), None);
    }
}
