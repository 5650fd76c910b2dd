//! The ledger that a person reads, the line that a program reads, and the verdict.

use super::Control;
use super::destination::Tally;
use super::generator::event_id;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// Ids of lost webhooks that are shown; one is enough to begin looking.
const SHOWN_IDS: usize = 5;

/// One `kill -9`.
#[derive(Debug, Clone)]
pub struct Kill {
    /// What was going on.
    pub when: &'static str,
    /// Webhooks accepted by then.
    pub accepted: u64,
    /// Writes on their way, by the host's own event after its restart.
    pub in_flight: Option<u64>,
    /// From the kill until the host took connections again.
    pub back_after: Duration,
    /// Repeats that the table's unique index dropped from this kill to the next, by the database's
    /// own counter.
    pub dropped: u64,
    /// Copies that appeared in the table from this kill to the next; without keys only.
    pub copies: u64,
}

/// Everything that is known at the end.
#[derive(Debug)]
pub struct Report {
    /// With the unique index or without.
    pub control: Control,
    /// Seed of webhooks and kills.
    pub seed: u64,
    /// Webhooks that the senders were to send.
    pub posted: u64,
    /// Webhooks answered 2xx.
    pub accepted: u64,
    /// The table.
    pub table: Tally,
    /// The folder.
    pub files: Tally,
    /// The kills in order.
    pub kills: Vec<Kill>,
    /// How long the destinations were away.
    pub outage: Duration,
    /// Webhooks accepted while they were.
    pub accepted_in_outage: u64,
    /// Repeats dropped by the unique index over the run.
    pub dropped: u64,
    /// The host's own count of recognised repeats, both destinations, all its runs.
    pub host_repeats: u64,
    /// Writes that the host gave up or set aside, in words.
    pub undelivered: String,
    /// Tries of the senders: broken connections, "not now", "still in flight".
    pub tries: [u64; 3],
    /// From the first webhook to the last one landed.
    pub took: Duration,
    /// What went wrong when the host was asked to end.
    pub stop_fault: Option<String>,
}

/// The last line with `--json`.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Summary {
    accepted: u64,
    landed: u64,
    lost: u64,
    copies: u64,
    repeats_dropped: u64,
    kills: u64,
    outages: u64,
}

impl Report {
    /// Webhooks that are at both destinations.
    fn landed(&self) -> u64 {
        let both = |index: &u64| self.table.has(*index) && self.files.has(*index);
        (0..self.posted).filter(both).count() as u64
    }

    /// The numbers for a program.
    pub fn summary(&self) -> Summary {
        let landed = self.landed();
        Summary {
            accepted: self.accepted,
            landed,
            lost: self.accepted.saturating_sub(landed),
            copies: self.table.extra() + self.files.extra(),
            repeats_dropped: self.dropped,
            kills: self.kills.len() as u64,
            outages: 1,
        }
    }

    /// What is wrong, a sentence each; empty when everything that was promised held.
    pub fn faults(&self) -> Vec<String> {
        let summary = self.summary();
        let mut faults: Vec<String> = self.stop_fault.iter().cloned().collect();
        let mut expect = |holds: bool, text: String| {
            if !holds {
                faults.push(text);
            }
        };
        expect(
            summary.accepted == self.posted,
            format!(
                "only {} of {} webhooks were accepted",
                self.accepted, self.posted
            ),
        );
        expect(
            summary.lost == 0,
            format!("{} accepted webhooks were lost", summary.lost),
        );
        for (name, tally) in [("table", &self.table), ("folder", &self.files)] {
            expect(
                tally.altered == 0,
                format!(
                    "{} bodies in the {name} differ from what was sent",
                    tally.altered
                ),
            );
            expect(
                tally.foreign == 0,
                format!(
                    "the {name} holds {} entries that nobody sent",
                    tally.foreign
                ),
            );
        }
        expect(
            self.files.extra() == 0,
            format!("the folder holds {} copies", self.files.extra()),
        );
        match self.control {
            Control::Keys => {
                expect(
                    self.table.extra() == 0,
                    format!("the table holds {} copies", self.table.extra()),
                );
                expect(
                    self.dropped > 0,
                    "no repeat was dropped: the kills met no write in flight and proved nothing; \
                     run it again with another --seed"
                        .into(),
                );
            }
            Control::NoKeys => expect(
                self.table.extra() > 0,
                "the control shows no copies: the kills met no write in flight and proved nothing; \
                 run it again with another --seed"
                    .into(),
            ),
        }
        faults
    }

    /// The ledger for a person.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let table = match self.control {
            Control::Keys => "SQLite table",
            Control::NoKeys => "SQLite table, no unique index",
        };
        writeln!(out)?;
        writeln!(out, "{:<32}{:>10}", "webhooks posted", self.posted)?;
        writeln!(
            out,
            "{:<32}{:>10}",
            "accepted (answered 2xx)", self.accepted
        )?;
        writeln!(out)?;
        writeln!(
            out,
            "{:<32}{:>10}{:>8}{:>8}{:>9}",
            "at the destination", "landed", "lost", "copies", "altered"
        )?;
        for (name, tally) in [(table, &self.table), ("folder of files", &self.files)] {
            writeln!(
                out,
                "{name:<32}{:>10}{:>8}{:>8}{:>9}",
                tally.landed(),
                tally.missing(self.posted),
                tally.extra(),
                tally.altered
            )?;
        }
        self.write_lost(out)?;
        if self.files.unfinished > 0 {
            writeln!(
                out,
                "hidden files that a kill left unfinished in the folder: {}",
                self.files.unfinished
            )?;
        }
        writeln!(out)?;
        for (number, kill) in self.kills.iter().enumerate() {
            let in_flight = match kill.in_flight {
                Some(count) => format!("up to {count} writes in flight"),
                None => "writes in flight not known".into(),
            };
            writeln!(
                out,
                "kill -9 no. {}: {}, {} accepted, {in_flight}; back after {:.1} s",
                number + 1,
                kill.when,
                kill.accepted,
                kill.back_after.as_secs_f64()
            )?;
            let after = match self.control {
                Control::Keys => format!("{} repeats, dropped by their key", kill.dropped),
                Control::NoKeys => format!("{} copies", kill.copies),
            };
            writeln!(out, "{:14}afterwards the table was sent {after}", "")?;
        }
        writeln!(
            out,
            "outage: both destinations away for {:.1} s, {} webhooks accepted meanwhile",
            self.outage.as_secs_f64(),
            self.accepted_in_outage
        )?;
        let [broken, blocked, in_flight] = self.tries;
        writeln!(
            out,
            "senders: tried again {broken} times after a broken connection, {blocked} after \"not now\", \
             {in_flight} after \"still in flight\""
        )?;
        writeln!(
            out,
            "host: counts {} repeats that the two destinations recognised",
            self.host_repeats
        )?;
        if !self.undelivered.is_empty() {
            writeln!(out, "host: not delivered: {}", self.undelivered)?;
        }
        writeln!(out, "seed {}, {:.1} s", self.seed, self.took.as_secs_f64())
    }

    /// The first of the webhooks that are missing somewhere.
    fn write_lost(&self, out: &mut String) -> std::fmt::Result {
        for (name, tally) in [("table", &self.table), ("folder", &self.files)] {
            let ids: Vec<String> = (0..self.posted)
                .filter(|index| !tally.has(*index))
                .take(SHOWN_IDS)
                .map(|index| event_id(self.seed, index))
                .collect();
            if !ids.is_empty() {
                writeln!(out, "not in the {name}: {} …", ids.join(", "))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::generator::webhook;

    fn tally(indexes: &[u64]) -> Tally {
        let mut tally = Tally::default();
        for index in indexes {
            tally.add(1, 4, &webhook(1, *index).body);
        }
        tally
    }

    fn report(control: Control, table: &[u64], files: &[u64]) -> Report {
        let kill = Kill {
            when: "in steady traffic",
            accepted: 2,
            in_flight: Some(7),
            back_after: Duration::from_millis(420),
            dropped: 5,
            copies: 0,
        };
        Report {
            control,
            seed: 1,
            posted: 4,
            accepted: 4,
            table: tally(table),
            files: tally(files),
            kills: vec![kill],
            outage: Duration::from_secs(10),
            accepted_in_outage: 2,
            dropped: 5,
            host_repeats: 11,
            undelivered: String::new(),
            tries: [3, 2, 1],
            took: Duration::from_secs(44),
            stop_fault: None,
        }
    }

    #[test]
    fn the_line_for_programs_has_its_names_in_order() {
        let report = report(Control::Keys, &[0, 1, 2, 3], &[0, 1, 2, 3]);
        assert_eq!(
            serde_json::to_string(&report.summary()).unwrap(),
            r#"{"accepted":4,"landed":4,"lost":0,"copies":0,"repeats_dropped":5,"kills":1,"outages":1}"#
        );
        assert_eq!(report.faults(), Vec::<String>::new());
    }

    #[test]
    fn a_webhook_that_reached_one_destination_only_is_lost() {
        let report = report(Control::Keys, &[0, 1, 2, 3, 3], &[0, 1, 3]);
        let summary = report.summary();
        assert_eq!((summary.landed, summary.lost, summary.copies), (3, 1, 1));
        let faults = report.faults().join("; ");
        assert_eq!(
            faults,
            "1 accepted webhooks were lost; the table holds 1 copies"
        );
        assert!(
            report.text().contains("not in the folder: evt_1_000002"),
            "{}",
            report.text()
        );
    }

    #[test]
    fn kills_that_met_nothing_fail_the_demo_and_its_control() {
        let all = [0, 1, 2, 3];
        let mut report = report(Control::Keys, &all, &all);
        report.dropped = 0;
        assert!(report.faults().join("").contains("proved nothing"));
        report.control = Control::NoKeys;
        assert!(report.faults().join("").contains("shows no copies"));
        report.table = tally(&[0, 1, 2, 3, 3]);
        assert_eq!(report.faults(), Vec::<String>::new());
    }

    #[test]
    fn a_person_reads_what_happened() {
        let report = report(Control::Keys, &[0, 1, 2, 3], &[0, 1, 2, 3]);
        let expected = "
webhooks posted                          4
accepted (answered 2xx)                  4

at the destination                  landed    lost  copies  altered
SQLite table                             4       0       0        0
folder of files                          4       0       0        0

kill -9 no. 1: in steady traffic, 2 accepted, up to 7 writes in flight; back after 0.4 s
              afterwards the table was sent 5 repeats, dropped by their key
outage: both destinations away for 10.0 s, 2 webhooks accepted meanwhile
senders: tried again 3 times after a broken connection, 2 after \"not now\", 1 after \"still in flight\"
host: counts 11 repeats that the two destinations recognised
seed 1, 44.0 s
";
        assert_eq!(report.text(), expected);
    }
}
