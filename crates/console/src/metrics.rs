//! Metrics in the Prometheus text format, rendered from the status document.

use crate::Status;
use std::fmt::Write as _;

/// All metrics of a host at the moment of its status.
#[must_use]
pub fn render(status: &Status) -> String {
    let mut text = Text::default();
    host(&mut text, status);
    adapters(&mut text, status);
    lanes(&mut text, status);
    connections(&mut text, status);
    buffer(&mut text, status);
    text.0
}

fn host(text: &mut Text, status: &Status) {
    text.family("consign_info", "gauge", "The host's version; always 1.");
    text.sample(&[("version", &status.version)], 1);
    text.family(
        "consign_start_time_seconds",
        "gauge",
        "When the host started, in Unix time.",
    );
    text.seconds(&[], status.started_unix_ms);
    text.family(
        "consign_ready",
        "gauge",
        "1 when the host makes progress, as /health/ready says.",
    );
    text.sample(&[], u64::from(status.readiness.ready));
    let recovery = &status.recovery;
    for (name, help, value) in [
        (
            "consign_recovery_unclean_exit",
            "1 when the run before did not end cleanly.",
            u64::from(recovery.unclean_exit),
        ),
        (
            "consign_recovery_pending_writes",
            "Writes that were pending at start.",
            recovery.pending,
        ),
        (
            "consign_recovery_maybe_writes",
            "Of those, the ones that may have been on their way.",
            recovery.maybe_in_flight,
        ),
        (
            "consign_recovery_lost_writes",
            "Writes that damage of the disk took, found at start.",
            recovery.lost_writes,
        ),
    ] {
        text.family(name, "gauge", help);
        text.sample(&[], value);
    }
}

fn adapters(text: &mut Text, status: &Status) {
    let adapters = &status.adapters;
    text.family(
        "consign_messages_received_total",
        "counter",
        "Messages that sources handed over since the start.",
    );
    for a in adapters {
        text.sample(&[("adapter", &a.name)], a.received);
    }
    text.family(
        "consign_messages_total",
        "counter",
        "Messages by how they ended. Received is their sum and what is in process.",
    );
    for a in adapters {
        for (outcome, count) in &a.outcomes {
            text.sample(&[("adapter", &a.name), ("outcome", outcome)], *count);
        }
    }
    text.family(
        "consign_messages_in_process",
        "gauge",
        "Messages without an outcome yet.",
    );
    for a in adapters {
        text.sample(&[("adapter", &a.name)], a.in_process);
    }
    text.family(
        "consign_condition_errors_total",
        "counter",
        "Conditions that failed to evaluate, and so did not match.",
    );
    for a in adapters {
        text.sample(&[("adapter", &a.name)], a.condition_errors);
    }
    text.family(
        "consign_dropped_writes_total",
        "counter",
        "Writes left out because a lane with when_full: drop was full.",
    );
    for a in adapters {
        text.sample(&[("adapter", &a.name)], a.dropped_writes);
    }
    text.family(
        "consign_source_running",
        "gauge",
        "1 while the adapter's source runs.",
    );
    for a in adapters {
        text.sample(&[("adapter", &a.name)], u64::from(a.state == "running"));
    }
    text.family(
        "consign_last_progress_timestamp_seconds",
        "gauge",
        "When a message last ended, in Unix time; 0 before the first.",
    );
    for a in adapters {
        text.seconds(&[("adapter", &a.name)], a.last_progress_unix_ms);
    }
}

fn lanes(text: &mut Text, status: &Status) {
    let lanes = &status.lanes;
    text.family(
        "consign_writes_accepted_total",
        "counter",
        "Writes accepted into the lane.",
    );
    for l in lanes {
        text.sample(&[("lane", &l.id)], l.accepted);
    }
    text.family(
        "consign_writes_total",
        "counter",
        "Writes by how they ended. Accepted is their sum and what is pending.",
    );
    for l in lanes {
        for (outcome, count) in &l.outcomes {
            text.sample(&[("lane", &l.id), ("outcome", outcome)], *count);
        }
    }
    for (name, kind, help, value) in [
        (
            "consign_lane_pending",
            "gauge",
            "Writes without an outcome.",
            (|l| l.pending) as fn(&crate::LaneStatus) -> u64,
        ),
        (
            "consign_lane_pending_bytes",
            "gauge",
            "Bytes that are charged to the lane's quota.",
            |l| l.pending_bytes,
        ),
        (
            "consign_lane_quota_bytes",
            "gauge",
            "The lane's quota.",
            |l| l.quota_bytes,
        ),
        (
            "consign_lane_spill_bytes",
            "gauge",
            "Bytes of the lane's spill files.",
            |l| l.spill_bytes,
        ),
        (
            "consign_lane_in_flight",
            "gauge",
            "Writes on their way.",
            |l| l.in_flight,
        ),
        (
            "consign_lane_retrying",
            "gauge",
            "Writes that failed and wait for their next attempt.",
            |l| l.retrying,
        ),
        (
            "consign_lane_ambiguous",
            "gauge",
            "Writes that may have landed and are held.",
            |l| l.ambiguous,
        ),
        (
            "consign_lane_requests_total",
            "counter",
            "Requests in this run.",
            |l| l.requests,
        ),
        (
            "consign_lane_resends_total",
            "counter",
            "Attempts of writes that may have landed before, in this run.",
            |l| l.resends,
        ),
    ] {
        text.family(name, kind, help);
        for l in lanes {
            text.sample(&[("lane", &l.id)], value(l));
        }
    }
    text.family(
        "consign_lane_state",
        "gauge",
        "1 for what the lane is doing.",
    );
    for l in lanes {
        text.sample(&[("lane", &l.id), ("state", &l.state)], 1);
    }
}

fn connections(text: &mut Text, status: &Status) {
    let connections = &status.connections;
    text.family(
        "consign_gate_open",
        "gauge",
        "1 while the connection's gate is open.",
    );
    for c in connections {
        text.sample(&[("connection", &c.name)], u64::from(c.gate == "open"));
    }
    text.family("consign_gate_state", "gauge", "1 for the gate's state.");
    for c in connections {
        text.sample(&[("connection", &c.name), ("state", &c.gate)], 1);
    }
    text.family(
        "consign_connection_in_flight",
        "gauge",
        "Requests on their way.",
    );
    for c in connections {
        text.sample(&[("connection", &c.name)], c.in_flight);
    }
    text.family(
        "consign_connection_fenced_total",
        "counter",
        "Instances that were fenced in this run.",
    );
    for c in connections {
        text.sample(&[("connection", &c.name)], c.fenced);
    }
    text.family(
        "consign_connection_interruptions_total",
        "counter",
        "Interruptions in this run.",
    );
    for c in connections {
        text.sample(&[("connection", &c.name)], c.interruptions);
    }
}

fn buffer(text: &mut Text, status: &Status) {
    let b = &status.buffer;
    for (name, kind, help, value) in [
        (
            "consign_buffer_running",
            "gauge",
            "1 while the buffer takes writes.",
            u64::from(b.health == "running"),
        ),
        (
            "consign_buffer_log_bytes",
            "gauge",
            "Size of the commit log.",
            b.log_bytes,
        ),
        (
            "consign_buffer_log_used_bytes",
            "gauge",
            "Bytes of it that no checkpoint has freed.",
            b.log_used_bytes,
        ),
        (
            "consign_buffer_body_memory_bytes",
            "gauge",
            "Bodies in memory.",
            b.body_memory_bytes,
        ),
        (
            "consign_buffer_groups_total",
            "counter",
            "Flushes in this run.",
            b.groups,
        ),
        (
            "consign_buffer_records_total",
            "counter",
            "Records in this run.",
            b.records,
        ),
        (
            "consign_buffer_written_bytes_total",
            "counter",
            "Bytes written in this run.",
            b.written_bytes,
        ),
        (
            "consign_buffer_checkpoints_total",
            "counter",
            "Checkpoints in this run.",
            b.checkpoints,
        ),
        (
            "consign_buffer_checkpoint_failures_total",
            "counter",
            "Checkpoints that failed in this run.",
            b.checkpoint_failures,
        ),
    ] {
        text.family(name, kind, help);
        text.sample(&[], value);
    }
}

/// The text so far, and the family that samples belong to.
#[derive(Default)]
struct Text(String, &'static str);

impl Text {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.1 = name;
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: u64) {
        self.name(labels);
        let _ = writeln!(self.0, " {value}");
    }

    fn seconds(&mut self, labels: &[(&str, &str)], ms: u64) {
        self.name(labels);
        let _ = writeln!(self.0, " {}.{:03}", ms / 1_000, ms % 1_000);
    }

    fn name(&mut self, labels: &[(&str, &str)]) {
        self.0.push_str(self.1);
        for (n, (label, value)) in labels.iter().enumerate() {
            self.0.push(if n == 0 { '{' } else { ',' });
            let _ = write!(self.0, "{label}=\"{}\"", escape(value));
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
    }
}

/// A label's value: backslash, quote and line feed are the format's three exceptions.
fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
