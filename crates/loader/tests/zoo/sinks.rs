//! Sinks of the zoo.

use crate::{Act, Zoo, note};
use consign_plugin::prelude::*;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

/// What `zoo.write` does with a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WriteAct {
    /// Applies it.
    #[default]
    Ok,
    /// Answers delivered and does nothing, for measuring.
    Swallow,
    /// One of the plain steps; applies after it, unless it fails or never ends.
    Step(Act),
    /// Answers every write so, applying nothing.
    Refuse,
    /// See `refuse`.
    Denied,
    /// See `refuse`.
    Down,
    /// Throttled for this many milliseconds.
    Throttle(u64),
    /// Applies, and answers that it may have.
    Unknown,
    /// Applies, and answers with a server error.
    FailedMaybe,
    /// Answers for one write less.
    TooFew,
    /// Answers for one write more.
    TooMany,
    /// A thread of its own applies after this many milliseconds, whatever the host says; the
    /// future itself hangs and lets go when dropped.
    LateAfterCancel(u64),
    /// Applies after this many milliseconds on a thread for blocking work.
    Blocking(u64),
    /// Its future panics when it is dropped.
    DropPanics,
    /// Wakes through a waker that panics.
    WakerPanics,
}

/// Applies writes by appending `<key> <body>` to a file.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WriteConfig {
    /// The file.
    effects: Option<PathBuf>,
    /// What it does.
    act: WriteAct,
    /// Only with batches in which a body contains this text; the others are applied.
    on: Option<String>,
    /// Only with this many batches; then it applies.
    times: Option<u32>,
    /// Panics when it is opened.
    open: Act,
    /// A text that is rendered per write, noted after the body.
    label: Option<Template>,
}

pub struct Write {
    config: WriteConfig,
    done: AtomicU32,
}

fn declaration() -> SinkDeclaration {
    SinkDeclaration {
        promise: Promise::AtLeastOnce,
        unconfirmed: false,
        repeat: Repeat {
            kind: RepeatKind::SecondCopy,
            condition: None,
            window: Window::None,
        },
        key: KeyPlacement::On("start of the line".into()),
        batch: BatchKind::Independent,
        sealed: false,
        note: String::new(),
    }
}

fn resolved() -> Resolved {
    Resolved {
        promise: Promise::AtLeastOnce,
        unconfirmed: false,
        repeat: RepeatKind::SecondCopy,
        window: Window::None,
        reason: "a line is appended again".into(),
        target_id: "effects".into(),
        target_fields: Vec::new(),
        faults: Vec::new(),
    }
}

#[async_trait]
impl Sink for Write {
    type Connector = Zoo;
    type Config = WriteConfig;
    const OPERATION: &'static str = "zoo.write";
    const TITLE: &'static str = "Write";

    fn declaration() -> SinkDeclaration {
        declaration()
    }

    fn resolve(_: &crate::ZooConfig, config: &WriteConfig) -> Resolved {
        assert_ne!(
            config.act,
            WriteAct::Step(Act::Panic),
            "resolve has escaped"
        );
        resolved()
    }

    async fn open(
        _: Arc<Zoo>,
        config: WriteConfig,
        cx: &ConnectionContext,
    ) -> Result<Self, Failure> {
        config.open.step().await?;
        tracing_line(cx);
        Ok(Self {
            config,
            done: AtomicU32::new(0),
        })
    }

    async fn write(&self, batch: &Batch, cx: &WriteContext) -> Vec<Outcome> {
        if self.config.act == WriteAct::Swallow {
            return batch.all(Outcome::delivered());
        }
        let text = self.config.on.as_deref().unwrap_or_default();
        let chosen = batch
            .writes()
            .iter()
            .any(|w| String::from_utf8_lossy(w.body()).contains(text));
        let turn = self.done.fetch_add(1, Ordering::Relaxed);
        if !chosen || self.config.times.is_some_and(|times| turn >= times) {
            return self.apply(batch);
        }
        match self.config.act {
            WriteAct::Ok | WriteAct::Swallow => self.apply(batch),
            WriteAct::Step(act) => match act.step().await {
                Ok(()) => self.apply(batch),
                Err(failure) => batch.all(Outcome::down((failure.code, failure.message))),
            },
            WriteAct::Refuse => batch.all(Outcome::refused(("zoo_refused", "not this one"))),
            WriteAct::Denied => batch.all(Outcome::denied(("zoo_denied", "no ticket"))),
            WriteAct::Down => batch.all(Outcome::down(("zoo_down", "the zoo is closed"))),
            WriteAct::Throttle(ms) => batch.all(Outcome::throttled(Duration::from_millis(ms))),
            WriteAct::Unknown => {
                self.apply(batch);
                batch.all(Outcome::unknown(("zoo_unknown", "the answer got lost")))
            }
            WriteAct::FailedMaybe => {
                self.apply(batch);
                batch.all(Outcome::failed_maybe(("zoo_500", "the keeper fell")))
            }
            WriteAct::TooFew => {
                let mut outcomes = self.apply(batch);
                outcomes.pop();
                outcomes
            }
            WriteAct::TooMany => {
                let mut outcomes = self.apply(batch);
                outcomes.push(Outcome::delivered());
                outcomes
            }
            WriteAct::LateAfterCancel(ms) => {
                let (batch, config) = (batch.clone(), self.config.clone());
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(ms));
                    apply(&config, &batch);
                });
                std::future::pending().await
            }
            WriteAct::Blocking(ms) => {
                let (batch, config) = (batch.clone(), self.config.clone());
                cx.blocking(move || {
                    std::thread::sleep(Duration::from_millis(ms));
                    apply(&config, &batch)
                })
                .await
            }
            WriteAct::DropPanics => {
                let _guard = PanicsOnDrop;
                std::future::pending().await
            }
            WriteAct::WakerPanics => {
                WakesBadly.await;
                self.apply(batch)
            }
        }
    }
}

impl Write {
    fn apply(&self, batch: &Batch) -> Vec<Outcome> {
        apply(&self.config, batch)
    }
}

fn apply(config: &WriteConfig, batch: &Batch) -> Vec<Outcome> {
    batch
        .writes()
        .iter()
        .map(|write| {
            let body = String::from_utf8_lossy(write.body()).into_owned();
            let label = match &config.label {
                Some(label) => match write.text(label) {
                    Ok(text) => format!(" {text}"),
                    Err(detail) => return Outcome::refused(detail),
                },
                None => String::new(),
            };
            note(
                config.effects.as_deref(),
                &format!("{} {body}{label}", write.key()),
            );
            Outcome::delivered()
        })
        .collect()
}

fn tracing_line(cx: &ConnectionContext) {
    cx.count("opened", 1);
    tracing::warn!(
        animal = "lion",
        number = 3,
        "opened for {}",
        cx.connection()
    );
}

struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("a future has escaped");
    }
}

/// Polls a timer with a waker of its own, which panics when it is woken.
struct WakesBadly;

impl Future for WakesBadly {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        fn clone(_: *const ()) -> RawWaker {
            RawWaker::new(std::ptr::null(), &VTABLE)
        }
        fn wake(_: *const ()) {
            panic!("a waker has escaped");
        }
        fn drop(_: *const ()) {}
        static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake, drop);
        // SAFETY: the waker holds no data; its functions touch none.
        let waker = unsafe { Waker::from_raw(clone(std::ptr::null())) };
        waker.wake_by_ref();
        let _ = cx;
        Poll::Pending
    }
}

/// How `zoo.crash` ends the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// SIGSEGV.
    #[default]
    Segv,
    /// SIGABRT.
    Abort,
    /// SIGBUS.
    Bus,
    /// SIGILL.
    Ill,
}

/// Applies some batches like `zoo.write`, then kills the process.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CrashConfig {
    /// The file of effects.
    effects: Option<PathBuf>,
    /// Batches that are applied before.
    after: u32,
    /// Only a batch in which a body contains this text crashes.
    on: Option<String>,
    /// A file that disarms it while it exists; created by the crash when `once` is set.
    disarmed_by: Option<PathBuf>,
    /// Creates `disarmed_by` before it crashes.
    once: bool,
    /// How.
    signal: Signal,
}

pub struct Crash {
    config: CrashConfig,
    done: AtomicU32,
}

#[async_trait]
impl Sink for Crash {
    type Connector = Zoo;
    type Config = CrashConfig;
    const OPERATION: &'static str = "zoo.crash";
    const TITLE: &'static str = "Crash";

    fn declaration() -> SinkDeclaration {
        declaration()
    }

    fn resolve(_: &crate::ZooConfig, _: &CrashConfig) -> Resolved {
        resolved()
    }

    async fn open(
        _: Arc<Zoo>,
        config: CrashConfig,
        _: &ConnectionContext,
    ) -> Result<Self, Failure> {
        Ok(Self {
            config,
            done: AtomicU32::new(0),
        })
    }

    async fn write(&self, batch: &Batch, _: &WriteContext) -> Vec<Outcome> {
        let text = self.config.on.as_deref().unwrap_or_default();
        let chosen = batch
            .writes()
            .iter()
            .any(|w| String::from_utf8_lossy(w.body()).contains(text));
        let disarmed = self.config.disarmed_by.as_deref();
        let due = self.done.fetch_add(1, Ordering::Relaxed) >= self.config.after;
        if chosen && due && !disarmed.is_some_and(std::path::Path::exists) {
            if self.config.once {
                note(disarmed, "crashed");
            }
            let signal = match self.config.signal {
                Signal::Segv => libc::SIGSEGV,
                Signal::Abort => libc::SIGABRT,
                Signal::Bus => libc::SIGBUS,
                Signal::Ill => libc::SIGILL,
            };
            // SAFETY: raising a signal has no preconditions.
            unsafe { libc::raise(signal) };
        }
        let config = WriteConfig {
            effects: self.config.effects.clone(),
            ..WriteConfig::default()
        };
        apply(&config, batch)
    }
}
