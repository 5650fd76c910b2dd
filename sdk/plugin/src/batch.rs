//! A batch of writes as a sink reads it: one arena, no copies.

use crate::{Advice, Detail, Outcome, Template};
use consign_abi::{Span, WriteBatch, WriteRow, flags};
use std::fmt;
use std::sync::Arc;

/// The identity of a write, the same on its first attempt, on every resend and on every replay.
///
/// `Display` gives the 32 lower-case hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteKey([u8; 16]);

impl WriteKey {
    /// The key with these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }

    /// `<key>#<i>`: names item or row `i` inside this one write, never a place in a request.
    #[must_use]
    pub fn item(&self, i: usize) -> String {
        format!("{self}#{i}")
    }
}

impl fmt::Display for WriteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// The writes of one request, in order. Cheap to clone (a reference count), and free to move into
/// `tokio::task::spawn_blocking`.
#[derive(Debug, Clone)]
pub struct Batch(Arc<[Write]>);

impl Batch {
    pub(crate) fn new(batch: WriteBatch) -> Self {
        let batch = Arc::new(batch);
        Self(
            (0..batch.rows.len())
                .map(|row| Write {
                    batch: Arc::clone(&batch),
                    row,
                })
                .collect(),
        )
    }

    /// The writes, in order. Answer with one outcome for each, in this order.
    #[must_use]
    pub fn writes(&self) -> &[Write] {
        &self.0
    }

    /// How many writes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none. The host never sends such a batch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same outcome for every write: `batch.all(Outcome::down(("refused", "…")))`.
    #[must_use]
    pub fn all(&self, outcome: Outcome) -> Vec<Outcome> {
        vec![outcome; self.len()]
    }
}

/// Why the transaction of a whole batch was rolled back, and by which write if one is to blame: what an
/// operation with an atomic batch answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollback {
    write: Option<usize>,
    outcome: Outcome,
}

impl Rollback {
    /// The write with this number is to blame.
    #[must_use]
    pub fn by(write: usize, outcome: Outcome) -> Self {
        let write = Some(write);
        Self { write, outcome }
    }

    /// It is about none of them alone.
    #[must_use]
    pub fn of_all(outcome: Outcome) -> Self {
        let write = None;
        Self { write, outcome }
    }

    /// The outcome of the write that is to blame, or of all.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// One outcome for each write of the batch. Companions of a write that was refused were not applied
    /// either, through no fault of their own: they are to be tried again.
    #[must_use]
    pub fn outcomes(self, batch: usize) -> Vec<Outcome> {
        let companion = match self.write {
            Some(_) if self.outcome.advice() == Advice::Never => {
                Outcome::retry(("batch", "rolled back with a write that was refused"))
            }
            _ => self.outcome.clone(),
        };
        let mut outcomes = vec![companion; batch];
        if let Some(own) = self.write.and_then(|write| outcomes.get_mut(write)) {
            *own = self.outcome;
        }
        outcomes
    }
}

/// One write: a view into its batch. Cheap to clone (a reference count).
#[derive(Clone)]
pub struct Write {
    batch: Arc<WriteBatch>,
    row: usize,
}

/// Stands in for a row that is not there, which no `Write` points at.
const NO_ROW: WriteRow = WriteRow {
    key: [0; 16],
    time_unix_ms: 0,
    flags: 0,
    body: Span::ABSENT,
    content_type: Span::ABSENT,
    routing_key: Span::ABSENT,
    headers: Span::ABSENT,
    templates: Span::ABSENT,
    attributes: Span::ABSENT,
};

impl Write {
    fn row(&self) -> &WriteRow {
        self.batch.rows.get(self.row).unwrap_or(&NO_ROW)
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> WriteKey {
        WriteKey(self.row().key)
    }

    /// The rendered body, byte for byte as it is to arrive.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.row().body.of(&self.batch.arena).unwrap_or_default()
    }

    /// The body's content type, where known.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.row().content_type.text(&self.batch.arena)
    }

    /// The message's headers, in order; a name may come twice.
    #[must_use]
    pub fn headers(&self) -> Headers<'_> {
        Headers {
            arena: &self.batch.arena,
            rows: self
                .row()
                .headers
                .of(&self.batch.headers)
                .unwrap_or_default()
                .iter(),
        }
    }

    /// The text of a template of the function config, rendered by the host at acceptance: the
    /// same on every resend.
    ///
    /// # Errors
    /// The host sent no text for it: answer `Outcome::refused(detail)`.
    pub fn text<'a>(&'a self, template: &'a Template) -> Result<&'a str, Detail> {
        template.render(self)
    }

    /// Whether an earlier attempt of this write may have landed.
    #[must_use]
    pub fn may_be_repeat(&self) -> bool {
        self.row().flags & flags::WRITE_MAY_BE_REPEAT != 0
    }

    /// The message's routing key, where it has one.
    #[must_use]
    pub fn routing_key(&self) -> Option<&str> {
        self.row().routing_key.text(&self.batch.arena)
    }

    /// The message's time, unix milliseconds.
    #[must_use]
    pub fn time_unix_ms(&self) -> i64 {
        self.row().time_unix_ms
    }

    pub(crate) fn template(&self, slot: u32) -> Option<&str> {
        let templates = self.row().templates.of(&self.batch.templates)?;
        templates
            .iter()
            .find(|t| t.slot == slot)
            .and_then(|t| t.text.text(&self.batch.arena))
    }
}

impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Write")
            .field("key", &self.key().to_string())
            .field("bytes", &self.body().len())
            .finish_non_exhaustive()
    }
}

/// Headers of a write or message: `(name, value)`; names are UTF-8, values any bytes.
#[derive(Debug, Clone)]
pub struct Headers<'a> {
    pub(crate) arena: &'a [u8],
    pub(crate) rows: std::slice::Iter<'a, consign_abi::HeaderRow>,
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.rows.find_map(|row| {
            let name = row.name.text(self.arena)?;
            Some((name, Span::of(row.value, self.arena)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn companions_of_a_refused_write_are_tried_again_and_those_of_an_outage_share_it() {
        let refused = Outcome::refused(("constraint", "no"));
        let outcomes = Rollback::by(1, refused.clone()).outcomes(3);
        assert_eq!(outcomes[1], refused);
        assert!([0, 2].iter().all(|i| outcomes[*i].code() == "batch"));
        let down = Outcome::down(("gone", "away"));
        for rollback in [
            Rollback::by(1, down.clone()),
            Rollback::of_all(down.clone()),
        ] {
            assert_eq!(rollback.outcomes(2), [down.clone(), down.clone()]);
        }
    }
}
