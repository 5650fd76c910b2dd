//! `tcp.send`: the messages of a batch as frames on the stream, in order.

use crate::config::{ConnectionConfig, SendConfig};
use crate::connection::{Progress, Tcp};
use crate::frame::Frames;
use crate::outcome::{Answer, of_failure, outcome};
use consign_plugin::prelude::*;
use std::ops::Range;
use std::time::Duration;
use tokio::time::Instant;

/// The answer is given this much before the host's deadline: after it, messages that were handed over
/// would count as unknown as well.
const ANSWER_MARGIN: Duration = Duration::from_millis(50);

/// The sink of one send.
pub struct SendFrames {
    connection: Arc<Tcp>,
    frames: Frames,
}

#[async_trait]
impl Sink for SendFrames {
    type Connector = Tcp;
    type Config = SendConfig;
    const OPERATION: &'static str = "tcp.send";
    const TITLE: &'static str = "Send";

    fn declaration() -> SinkDeclaration {
        SinkDeclaration {
            promise: Promise::AtLeastOnce,
            unconfirmed: true,
            repeat: Repeat {
                kind: RepeatKind::SecondCopy,
                condition: None,
                window: Window::None,
            },
            key: KeyPlacement::Nowhere(
                "a raw TCP stream is the pipeline's bytes and framing".into(),
            ),
            // A stream has an order, and ends in one place.
            batch: BatchKind::Prefix,
            sealed: false,
            note: "Buffered while the receiver can't be reached. A message the network accepted is counted sent, not confirmed: raw TCP has no acknowledgement, so one handed over just before the receiver fails may be lost. Where each write must be confirmed, use a connector whose destination acknowledges it.".into(),
        }
    }

    fn resolve(connection: &ConnectionConfig, _: &SendConfig) -> Resolved {
        Resolved {
            promise: Promise::AtLeastOnce,
            unconfirmed: true,
            repeat: RepeatKind::SecondCopy,
            window: Window::None,
            reason: "raw TCP has no acknowledgement: what the network took is sent, not confirmed"
                .into(),
            target_id: connection.address.clone(),
            target_fields: Vec::new(),
            faults: connection.faults(),
        }
    }

    async fn open(
        connection: Arc<Tcp>,
        _: SendConfig,
        _: &ConnectionContext,
    ) -> Result<Self, Failure> {
        let frames = Frames::of(connection.config());
        Ok(Self { connection, frames })
    }

    async fn write(&self, batch: &Batch, cx: &WriteContext) -> Vec<Outcome> {
        let mut bytes = Vec::new();
        let mut places: Vec<Range<usize>> = Vec::with_capacity(batch.len());
        let mut unsendable = None;
        for write in batch.writes() {
            let start = bytes.len();
            match self.frames.push(&mut bytes, write.body()) {
                Ok(()) => places.push(start..bytes.len()),
                // What is behind it keeps its place in the order.
                Err(why) => {
                    unsendable = Some(why);
                    break;
                }
            }
        }
        let mut outcomes = match self.hand_over(&bytes, cx).await {
            Ok(progress) => places
                .into_iter()
                .map(|place| outcome(answer(place, &progress, self.frames)))
                .collect(),
            Err(failure) => vec![of_failure(&failure); places.len()],
        };
        outcomes.extend(unsendable.map(|why| outcome(Answer::Unsendable(why))));
        outcomes.resize(batch.len(), outcome(Answer::Behind));
        outcomes
    }

    async fn inspect(&self) -> Inspection {
        Inspection::not_inspected("a TCP receiver answers nothing")
    }
}

impl SendFrames {
    async fn hand_over(&self, bytes: &[u8], cx: &WriteContext) -> Result<Progress, Failure> {
        if bytes.is_empty() {
            return Ok(Progress::default());
        }
        let request = Instant::now() + self.connection.config().timeouts.request.get();
        let deadline = Instant::from_std(cx.deadline()) - ANSWER_MARGIN.min(cx.remaining() / 2);
        self.connection.send(bytes, request.min(deadline)).await
    }
}

/// What became of the message at this place of a batch's bytes.
fn answer(place: Range<usize>, progress: &Progress, frames: Frames) -> Answer {
    let why = || {
        let ended = progress.ended_by.clone();
        ended.unwrap_or_else(|| Detail::new("not_sent", "the stream ended"))
    };
    if place.end <= progress.taken {
        Answer::HandedOver
    } else if place.start >= progress.begun {
        Answer::NotSent(why())
    } else if progress.begun < place.end && frames.shows_a_cut() {
        Answer::CutShort(why())
    } else {
        Answer::InDoubt(why())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LengthOrder;

    fn answers(taken: usize, begun: usize, frames: Frames) -> Vec<&'static str> {
        let progress = Progress {
            taken,
            begun,
            ended_by: Some(Detail::new("reset", "cut")),
        };
        [0..10, 10..20, 20..30]
            .into_iter()
            .map(|place| match answer(place, &progress, frames) {
                Answer::HandedOver => "handed over",
                Answer::CutShort(_) => "cut short",
                Answer::InDoubt(_) => "in doubt",
                Answer::NotSent(_) => "not sent",
                _ => "other",
            })
            .collect()
    }

    #[test]
    fn a_stream_that_ends_splits_its_batch_in_three() {
        let lengths = Frames::Lengths(4, LengthOrder::BigEndian);
        for (taken, lines, prefixed) in [
            (0, ["not sent"; 3], ["not sent"; 3]),
            (
                1,
                ["in doubt", "not sent", "not sent"],
                ["cut short", "not sent", "not sent"],
            ),
            (
                10,
                ["handed over", "not sent", "not sent"],
                ["handed over", "not sent", "not sent"],
            ),
            (
                19,
                ["handed over", "in doubt", "not sent"],
                ["handed over", "cut short", "not sent"],
            ),
            (30, ["handed over"; 3], ["handed over"; 3]),
        ] {
            assert_eq!(answers(taken, taken, Frames::Lines), lines, "{taken}");
            assert_eq!(answers(taken, taken, Frames::Bare), lines, "{taken}");
            assert_eq!(answers(taken, taken, lengths), prefixed, "{taken}");
        }
    }

    #[test]
    fn what_tls_may_have_sent_whole_is_in_doubt_whatever_the_framing() {
        let lengths = Frames::Lengths(4, LengthOrder::BigEndian);
        assert_eq!(
            answers(0, 25, lengths),
            ["in doubt", "in doubt", "cut short"]
        );
        assert_eq!(
            answers(10, 30, lengths),
            ["handed over", "in doubt", "in doubt"]
        );
    }
}
