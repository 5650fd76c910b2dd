//! `localfile.read`: hands over what `tail` or `whole` reads, and tells it what became of it.

use crate::{
    config::{ConnectionConfig, Mode, ReadConfig, Start},
    connection::LocalFile,
    files::Selection,
    outcome::failure,
    tail::{self, Line, Tail},
    whole::{self, Taken, Whole},
};
use consign_plugin::prelude::*;
use std::time::Duration;
use tokio::time::Instant;

/// Messages read at a time, and never more than the host has room for.
const POLL_MESSAGES: usize = 512;
/// About this many bytes of lines are read at a time.
const POLL_BYTES: usize = 1 << 20;
/// A rotated file that was silent for this long is complete, unless configured.
const ROTATE_WAIT: Duration = Duration::from_secs(2);
/// A file that was unchanged for this long is complete, unless configured.
const QUIET: Duration = Duration::from_secs(2);

/// The source of one adapter.
#[derive(Debug)]
pub struct ReadFiles;

#[async_trait]
impl Source for ReadFiles {
    type Connector = LocalFile;
    type Config = ReadConfig;
    const OPERATION: &'static str = "localfile.read";
    const TITLE: &'static str = "Read Files";

    fn declaration() -> SourceDeclaration {
        SourceDeclaration {
            delivery: DeliveryType::OffsetTrackedCumulative,
            identity: Identity::Stable("the file's incarnation and the offset in it".into()),
            redelivery_bound_ms: None,
            note:
                "with `mode: whole` each file has a position of its own; its identity is its name, \
                   inode, time of change and size"
                    .into(),
        }
    }

    fn resolve(_: &ConnectionConfig, config: &ReadConfig) -> ResolvedSource {
        let (delivery, identity, reason) = match config.mode {
            Mode::Tail => (
                DeliveryType::OffsetTrackedCumulative,
                "the file's incarnation and the offset in it",
                "a line keeps its identity over restarts and rotation, and gets a new one when its \
                 file is truncated",
            ),
            Mode::Whole => (
                DeliveryType::OffsetTrackedIndividual,
                "the file's name, inode, time of change and size",
                "a file keeps its identity until it is changed or replaced",
            ),
        };
        ResolvedSource {
            delivery,
            identity: Identity::Stable(identity.into()),
            reason: reason.into(),
            faults: config.faults(),
        }
    }

    async fn run(
        connection: Arc<LocalFile>,
        config: ReadConfig,
        cx: SourceContext,
    ) -> Result<(), Failure> {
        if let Some(fault) = config.faults().into_iter().next() {
            return Err(Failure::config(("config", fault)));
        }
        let position = cx.position();
        let reader = Reader::new(&connection, &config, position.as_deref())
            .map_err(|e| Failure::config(("position_unreadable", e)))?;
        let started = Instant::now();
        let mut reader = Held(Some(reader));
        let (deliverer, controls) = cx.split();
        let mut not_before = started;
        loop {
            let ready = async {
                tokio::time::sleep_until(not_before).await;
                deliverer.ready().await
            };
            let room = tokio::select! {
                biased;
                control = controls.next() => match control {
                    Control::Stop => return Ok(()),
                    Control::Settle(settled) => {
                        if let Some(wait) = reader.with(move |r| r.settle(&settled)).await? {
                            not_before = Instant::now() + wait;
                        }
                        continue;
                    }
                    Control::Seek(position) => {
                        reader.with(move |r| r.seek(&position)).await?;
                        continue;
                    }
                    _ => continue,
                },
                room = ready => room,
            };
            let Ok(room) = room else {
                // `Stop` comes next.
                not_before = Instant::now() + config.poll_interval.get();
                continue;
            };
            let now = started.elapsed();
            let most = room.clamp(1, POLL_MESSAGES);
            let content_type = config.content_type.clone();
            let messages = reader
                .with(move |r| r.poll(now, most, content_type.as_deref()))
                .await?;
            if messages.is_empty() {
                not_before = Instant::now() + config.poll_interval.get();
            } else if deliverer.deliver(messages).await.is_err() {
                continue;
            }
        }
    }
}

/// A reader that is lent to the threads for blocking work.
struct Held(Option<Reader>);

impl Held {
    async fn with<T: Send + 'static>(
        &mut self,
        job: impl FnOnce(&mut Reader) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let lost = || Failure::other(("panicked", "reading the files panicked"));
        let mut reader = self.0.take().ok_or_else(lost)?;
        let done = tokio::task::spawn_blocking(move || {
            let result = job(&mut reader);
            (reader, result)
        });
        let (reader, result) = done.await.map_err(|_| lost())?;
        self.0 = Some(reader);
        result.map_err(|error| failure(&error, "the files can't be read"))
    }
}

enum Reader {
    Tail(Box<Tail>),
    Whole(Box<Whole>),
}

impl Reader {
    fn new(
        connection: &LocalFile,
        config: &ReadConfig,
        position: Option<&[u8]>,
    ) -> Result<Self, String> {
        let root = connection.root();
        let selection = Selection::new(root, &config.path, &config.exclude)?;
        let max_body = config.max_body.bytes();
        if config.mode == Mode::Whole {
            let settings = whole::Settings {
                quiet: config.quiet.map_or(QUIET, HumanDuration::get),
                max_body,
                after: config.after.unwrap_or_default(),
                move_to: config.move_to.as_ref().map(|folder| root.join(folder)),
            };
            return Whole::new(root.to_owned(), selection, settings, position)
                .map(|whole| Self::Whole(Box::new(whole)));
        }
        let settings = tail::Settings {
            from_end: config.start == Some(Start::End),
            max_body: usize::try_from(max_body).unwrap_or(usize::MAX),
            rotate_wait: config.rotate_wait.map_or(ROTATE_WAIT, HumanDuration::get),
        };
        Tail::new(root.to_owned(), selection, settings, position)
            .map(|tail| Self::Tail(Box::new(tail)))
    }

    fn poll(
        &mut self,
        now: Duration,
        most: usize,
        content_type: Option<&str>,
    ) -> std::io::Result<Vec<SourceMessage>> {
        let messages: Vec<SourceMessage> = match self {
            Self::Tail(tail) => {
                let lines = tail.poll(now, most, POLL_BYTES)?;
                lines.into_iter().map(line_message).collect()
            }
            Self::Whole(whole) => whole.poll(now)?.into_iter().map(file_message).collect(),
        };
        let typed = |message: SourceMessage| match content_type {
            Some(content_type) => message.content_type(content_type),
            None => message,
        };
        Ok(messages.into_iter().map(typed).collect())
    }

    /// Passes on what became of messages; says when to poll next, where that changes.
    fn settle(&mut self, settled: &[Settled]) -> std::io::Result<Option<Duration>> {
        let mut wait = None;
        for one in settled {
            let back = !one.result.acknowledges();
            if let SettleResult::Blocked { retry_after_ms, .. } = one.result {
                wait = wait.max(Some(Duration::from_millis(retry_after_ms)));
            }
            let accepted = matches!(one.result, SettleResult::Accepted | SettleResult::Repeat);
            match self {
                Self::Tail(tail) => match one.token::<tail::Ticket>() {
                    Some(ticket) if back => tail.hand_back(*ticket)?,
                    Some(ticket) => tail.settle(*ticket),
                    None => {}
                },
                Self::Whole(whole) => {
                    // The next file is taken at once.
                    wait = wait.max(Some(Duration::ZERO));
                    match one.token::<whole::Ticket>() {
                        Some(_) if back => whole.hand_back(),
                        Some(ticket) => whole.settle(&ticket, accepted),
                        None => {}
                    }
                }
            }
        }
        Ok(wait)
    }

    /// `beginning`, or a position the source gave earlier.
    fn seek(&mut self, position: &[u8]) -> std::io::Result<()> {
        let position = (position.trim_ascii() != b"beginning").then_some(position);
        let result = match self {
            Self::Tail(tail) => tail.seek(position),
            Self::Whole(whole) => whole.seek(position),
        };
        if let Err(error) = result {
            tracing::error!(
                code = "seek_refused",
                "{error}; expected `beginning` or a position"
            );
        }
        Ok(())
    }
}

fn line_message(line: Line) -> SourceMessage {
    let mut identity = line.incarnation.to_vec();
    identity.extend(line.offset.to_be_bytes());
    SourceMessage::new(line.body)
        .routing_key(line.file.clone())
        .identity(identity)
        .partition(line.file.clone())
        .offset(line.offset)
        .attribute("file", line.file)
        .attribute("offset", line.offset)
        .position(line.position)
        .token(line.ticket)
}

fn file_message(file: Taken) -> SourceMessage {
    SourceMessage::new(file.body)
        .routing_key(file.name.clone())
        .identity(file.identity)
        .time_unix_ms(file.modified_unix_ms)
        .attribute("file", file.name)
        .position(file.position)
        .token(file.ticket)
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
