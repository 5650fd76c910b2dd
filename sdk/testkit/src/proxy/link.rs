//! One connection through the proxy: two pumps, and what a fault has done to them.

use super::{Action, Shared, Trigger, What};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

/// Bytes taken from a socket at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// A throttled pump passes its bytes in steps this far apart.
const THROTTLE_STEP: Duration = Duration::from_millis(50);

/// After the last bytes of a request that is cut in its midst the server gets this long to read them;
/// a reset would make it drop what it has not read yet.
const READ_GRACE: Duration = Duration::from_millis(100);

/// What was done to a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mode {
    swallow: bool,
    frozen: bool,
    over: bool,
    delay: Duration,
    held_until: Option<Instant>,
    bytes_per_s: Option<u64>,
}

/// One connection.
pub(super) struct Link {
    number: u64,
    shared: Arc<Shared>,
    mode: watch::Sender<Mode>,
}

impl Link {
    pub(super) fn new(number: u64, shared: Arc<Shared>) -> Self {
        Self {
            number,
            shared,
            mode: watch::Sender::new(Mode::default()),
        }
    }

    /// Pumps until one side ends or the connection is cut. Dropping both sockets is the cut.
    pub(super) async fn run(self, client: TcpStream, server: TcpStream) {
        // Requests are told apart by when they come; Nagle would glue them together.
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let mut cut = self.shared.cut.subscribe();
        let number = self.number;
        tokio::select! {
            () = self.to_server(from_client, to_server) => {}
            () = self.to_client(from_server, to_client) => {}
            _ = cut.wait_for(|up_to| *up_to >= number) => self.note(What::Cut),
        }
    }

    async fn to_server(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut watcher = Watcher::default();
        let mut chunk = vec![0; CHUNK_BYTES];
        if self.look(&mut watcher, &[]).is_some() && self.mode.borrow().over {
            return self.note(What::Cut);
        }
        loop {
            self.thaw().await;
            let Some(bytes) = read(&mut from, &mut chunk).await else {
                return self.ended(&mut to, What::ClientClosed).await;
            };
            let Some((end, action)) = self.look(&mut watcher, bytes) else {
                self.note(What::ToServer(bytes.to_vec()));
                if self.pass(&mut to, bytes).await.is_err() {
                    return;
                }
                continue;
            };
            let passed = match action {
                Action::CutBefore | Action::HalfOpen => 0,
                Action::CutAfter => end,
                _ => bytes.len(),
            };
            let (through, withheld) = bytes.split_at(passed);
            if !through.is_empty() {
                self.note(What::ToServer(through.to_vec()));
                if self.pass(&mut to, through).await.is_err() {
                    return;
                }
            }
            if !withheld.is_empty() {
                self.note(What::Withheld(withheld.to_vec()));
            }
            if self.mode.borrow().over {
                if passed > 0 {
                    let _ = to.shutdown().await;
                    tokio::time::sleep(READ_GRACE).await;
                }
                return self.note(What::Cut);
            }
        }
    }

    async fn to_client(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            self.thaw().await;
            let Some(bytes) = read(&mut from, &mut chunk).await else {
                let swallow = self.mode.borrow().swallow;
                if swallow {
                    // A swallowed connection ends when it is cut, not when the server is done.
                    self.note(What::ServerClosed);
                    return std::future::pending().await;
                }
                return self.ended(&mut to, What::ServerClosed).await;
            };
            self.thaw().await;
            let mode = *self.mode.borrow();
            if mode.swallow {
                self.note(What::Swallowed(bytes.to_vec()));
                continue;
            }
            let held = mode
                .held_until
                .map(|until| until.saturating_duration_since(Instant::now()));
            let delay = mode.delay.max(held.unwrap_or_default());
            if !delay.is_zero() {
                self.note(What::Delayed(delay));
                tokio::time::sleep(delay).await;
            }
            self.note(What::ToClient(bytes.to_vec()));
            if self.pass(&mut to, bytes).await.is_err() {
                return;
            }
        }
    }

    /// Shows the bytes to the armed fault. When it fires here, its action is in force at once and the
    /// answer says up to where the trigger's bytes go.
    fn look(&self, watcher: &mut Watcher, bytes: &[u8]) -> Option<(usize, Action)> {
        let (generation, trigger) = {
            let armed = self.shared.armed();
            (armed.generation, armed.fault.as_ref()?.when.clone())
        };
        let end = watcher.look(generation, &trigger, bytes)?;
        let action = self.shared.fire(generation)?;
        self.note(What::Fired(action));
        self.mode.send_modify(|mode| match action {
            Action::CutBefore | Action::CutAfter => mode.over = true,
            Action::SwallowReplies => mode.swallow = true,
            Action::HalfOpen => mode.frozen = true,
            Action::Delay(delay) => mode.delay = delay,
            Action::Late(late) => mode.held_until = Some(Instant::now() + late),
            Action::Throttle(rate) => mode.bytes_per_s = Some(rate.max(1)),
        });
        Some((end, action))
    }

    async fn pass(&self, to: &mut OwnedWriteHalf, bytes: &[u8]) -> std::io::Result<()> {
        let Some(rate) = self.mode.borrow().bytes_per_s else {
            return to.write_all(bytes).await;
        };
        let steps_per_s = 1_000 / u64::try_from(THROTTLE_STEP.as_millis()).unwrap_or(50);
        let step = usize::try_from((rate / steps_per_s).max(1)).unwrap_or(usize::MAX);
        for part in bytes.chunks(step) {
            to.write_all(part).await?;
            tokio::time::sleep(THROTTLE_STEP).await;
        }
        Ok(())
    }

    /// Waits while nothing may pass.
    async fn thaw(&self) {
        let mut mode = self.mode.subscribe();
        // The sender lives as long as the link.
        let _ = mode.wait_for(|mode| !mode.frozen).await;
    }

    /// One side has closed its half: the other is told, and what still comes back passes for a while.
    async fn ended(&self, to: &mut OwnedWriteHalf, what: What) {
        self.note(what);
        let _ = to.shutdown().await;
        tokio::time::sleep(READ_GRACE).await;
    }

    fn note(&self, what: What) {
        self.shared.note(self.number, what);
    }
}

/// The next bytes; none at the end or on an error.
async fn read<'a>(from: &mut OwnedReadHalf, chunk: &'a mut [u8]) -> Option<&'a [u8]> {
    match from.read(chunk).await {
        Ok(0) | Err(_) => None,
        Ok(count) => chunk.get(..count),
    }
}

/// How far one connection is with a trigger.
#[derive(Debug, Default)]
struct Watcher {
    generation: u64,
    bytes: u64,
    /// Texts found so far.
    found: usize,
    /// The last bytes, in case the next text lies across two reads.
    tail: Vec<u8>,
}

impl Watcher {
    /// Where in `bytes` the trigger is complete (the index after its last byte).
    fn look(&mut self, generation: u64, trigger: &Trigger, bytes: &[u8]) -> Option<usize> {
        if self.generation != generation {
            *self = Self {
                generation,
                ..Self::default()
            };
        }
        match trigger {
            Trigger::Connect => bytes.is_empty().then_some(0),
            Trigger::Bytes(limit) => {
                let before = self.bytes;
                self.bytes += bytes.len() as u64;
                let reached = before < *limit && self.bytes >= *limit;
                let end = usize::try_from(limit.saturating_sub(before)).unwrap_or(bytes.len());
                reached.then_some(end)
            }
            Trigger::Request(texts) => self.look_for(texts, bytes),
        }
    }

    fn look_for(&mut self, texts: &[Vec<u8>], bytes: &[u8]) -> Option<usize> {
        let carried = self.tail.len();
        let mut all = std::mem::take(&mut self.tail);
        all.extend_from_slice(bytes);
        let mut from = 0;
        while let Some(text) = texts.get(self.found) {
            let rest = all.get(from..).unwrap_or_default();
            let Some(at) = find(rest, text) else {
                let keep = text.len().saturating_sub(1).min(rest.len());
                self.tail = rest.get(rest.len() - keep..).unwrap_or_default().to_vec();
                return None;
            };
            self.found += 1;
            from += at + text.len();
        }
        // Complete: it starts over, for a fault that fires each time.
        self.found = 0;
        (from > carried).then(|| from - carried)
    }
}

/// Where `text` begins in `bytes`.
pub(super) fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    if text.is_empty() {
        return Some(0);
    }
    bytes.windows(text.len()).position(|window| window == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_across_reads_and_only_in_their_order() {
        let trigger = Trigger::Request(vec![b"mark".to_vec(), b"COMMIT".to_vec()]);
        let mut watcher = Watcher::default();
        assert_eq!(watcher.look(1, &trigger, b"COMMIT ma"), None);
        assert_eq!(watcher.look(1, &trigger, b"rk COM"), None);
        assert_eq!(watcher.look(1, &trigger, b"MIT;more"), Some(3));
        // It starts over, also within one read.
        assert_eq!(watcher.look(1, &trigger, b"markCOMMITx"), Some(10));
        assert_eq!(watcher.look(1, &trigger, b"COMMIT"), None);
    }

    #[test]
    fn bytes_are_counted_per_arming() {
        let trigger = Trigger::Bytes(10);
        let mut watcher = Watcher::default();
        assert_eq!(watcher.look(1, &trigger, b"12345678"), None);
        assert_eq!(watcher.look(1, &trigger, b"9abc"), Some(2));
        assert_eq!(watcher.look(1, &trigger, b"defg"), None, "once");
        assert_eq!(watcher.look(2, &trigger, b"0123456789"), Some(10));
    }
}
