//! The page for people: adapters, lanes, gates, promises and the last events. No script.

use crate::{
    AdapterStatus, ConnectionStatus, LaneStatus, RouteStatus, Status,
    time::{bytes, duration, utc},
};
use consign_promise::SendLevels;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

/// The page reloads itself this often, so that it can stand on a screen.
const RELOAD_SECONDS: u32 = 10;

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--bad:#c22;--good:#182}\
@media(prefers-color-scheme:dark){:root{--bad:#f66;--good:#6c8}}\
body{font:14px/1.45 system-ui,sans-serif;margin:1.5rem auto;max-width:76rem;padding:0 1rem}\
h1{font-size:1.3rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .4rem}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .6rem;\
border-bottom:1px solid var(--line);vertical-align:top}th{font-weight:600}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
.bad{color:var(--bad)}.good{color:var(--good)}.dim{opacity:.65}\
pre{margin:.3rem 0;white-space:pre-wrap}div.wide{overflow-x:auto}";

/// Renders it; `now_unix_ms` is the time it shows ages against.
pub(crate) fn render(
    status: &Status,
    events: &Result<Vec<Value>, String>,
    now_unix_ms: u64,
) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="refresh" content=(RELOAD_SECONDS);
                title { (if status.readiness.ready { "Consign" } else { "Consign: not ready" }) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (head(status, now_unix_ms))
                h2 { "Adapters" } (adapters(&status.adapters, now_unix_ms))
                h2 { "Lanes" } (lanes(&status.lanes))
                h2 { "Gates" } (gates(&status.connections))
                h2 { "Promises" } (promises(&status.adapters))
                h2 { "Last events" } (last_events(events))
            }
        }
    }
}

fn head(status: &Status, now_unix_ms: u64) -> Markup {
    let up = now_unix_ms.saturating_sub(status.started_unix_ms);
    html! {
        h1 { "Consign " (status.version) }
        p {
            @if status.readiness.ready {
                strong.good { "ready" }
            } @else {
                strong.bad { "not ready" }
            }
            " · process " (status.pid) " · up " (duration(up)) " · buffer " (status.buffer.health)
            ", log " (bytes(status.buffer.log_used_bytes)) " of " (bytes(status.buffer.log_bytes))
            @if status.recovery.unclean_exit {
                " · the run before did not end cleanly, " (status.recovery.maybe_in_flight)
                " writes may have been on their way"
            }
        }
        @if !status.readiness.reasons.is_empty() {
            ul { @for reason in &status.readiness.reasons { li.bad { (reason) } } }
        }
    }
}

fn none(what: &str) -> Markup {
    html! { p.dim { (what) } }
}

fn adapters(adapters: &[AdapterStatus], now_unix_ms: u64) -> Markup {
    if adapters.is_empty() {
        return none("No adapters.");
    }
    html! {
        div.wide { table {
            tr { th { "adapter" } th { "source" } th { "state" } th.n { "received" } th.n { "in process" } th { "ended" } th { "last progress" } }
            @for a in adapters {
                tr {
                    td { (a.name) }
                    td { (a.source) }
                    td {
                        span.bad[a.state == "failed"].good[a.state == "running"] { (a.state) }
                        @if let Some(why) = &a.why { br; span.bad { (why) } }
                    }
                    td.n { (a.received) }
                    td.n { (a.in_process) }
                    td { (outcomes(&a.outcomes)) }
                    td {
                        @if a.last_progress_unix_ms == 0 { span.dim { "none yet" } }
                        @else { (duration(now_unix_ms.saturating_sub(a.last_progress_unix_ms))) " ago" }
                    }
                }
            }
        } }
    }
}

/// Those that are not zero, on one line.
fn outcomes(outcomes: &std::collections::BTreeMap<String, u64>) -> String {
    let told: Vec<String> = outcomes
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(outcome, count)| format!("{} {count}", outcome.replace('_', " ")))
        .collect();
    told.join(", ")
}

fn lanes(lanes: &[LaneStatus]) -> Markup {
    if lanes.is_empty() {
        return none("No sends.");
    }
    html! {
        div.wide { table {
            tr { th { "lane" } th { "operation" } th { "state" } th.n { "pending" } th.n { "of quota" } th.n { "in flight" } th.n { "retrying" } th.n { "held" } th { "ended" } }
            @for l in lanes {
                tr {
                    td { (l.id) @if !l.buffered { " " span.dim { "direct" } } }
                    td { (l.operation) br; span.dim { "over " (l.connection) } }
                    td { span.bad[stands_still(&l.state)] { (l.state.replace('_', " ")) } }
                    td.n { (l.pending) }
                    td.n { @if l.buffered { (bytes(l.pending_bytes)) " of " (bytes(l.quota_bytes)) } }
                    td.n { (l.in_flight) }
                    td.n { (l.retrying) }
                    td.n { (l.ambiguous) }
                    td { (outcomes(&l.outcomes)) }
                }
            }
        } }
    }
}

fn stands_still(state: &str) -> bool {
    matches!(
        state,
        "halted" | "halted_on_one_write" | "gate_closed" | "target_closed"
    )
}

fn gates(connections: &[ConnectionStatus]) -> Markup {
    if connections.is_empty() {
        return none("No connection sends.");
    }
    html! {
        div.wide { table {
            tr { th { "connection" } th { "connector" } th { "gate" } th { "for" } th { "next try" } th.n { "in flight" } th.n { "interruptions" } th.n { "fenced" } }
            @for c in connections {
                tr {
                    td { (c.name) }
                    td { (c.connector) }
                    td { span.bad[c.gate != "open"].good[c.gate == "open"] { (c.gate.replace('_', " ")) } }
                    td { (duration(c.since_ms)) }
                    td { @if let Some(ms) = c.next_try_ms { "in " (duration(ms)) } }
                    td.n { (c.in_flight) }
                    td.n { (c.interruptions) }
                    td.n { (c.fenced) }
                }
            }
        } }
    }
}

fn promises(adapters: &[AdapterStatus]) -> Markup {
    let routes: Vec<(&AdapterStatus, &RouteStatus)> = adapters
        .iter()
        .flat_map(|a| a.routes.iter().map(move |r| (a, r)))
        .collect();
    if routes.is_empty() {
        return none("No routes.");
    }
    html! {
        div.wide { table {
            tr { th { "route" } th { "send" } th { "declared" } th { "resolved" } th { "inspected" } th { "end to end" } }
            @for (adapter, route) in routes {
                @let sends = levels(route);
                tr {
                    td rowspan=(sends.len().max(1)) {
                        (adapter.name) "/" (route.name)
                        details { summary.dim { (route.promise) } pre { (route.lines.join("\n")) } }
                    }
                    @if let Some(first) = sends.first() { (send_cells(first)) }
                    @else { td.dim colspan="5" { "nothing leaves" } }
                }
                @for send in sends.iter().skip(1) { tr { (send_cells(send)) } }
            }
        } }
    }
}

fn levels(route: &RouteStatus) -> Vec<SendLevels> {
    route
        .sends
        .iter()
        .filter_map(|send| serde_json::from_value(send.clone()).ok())
        .collect()
}

fn send_cells(send: &SendLevels) -> Markup {
    html! {
        td { (send.send) br; span.dim { (send.operation) } }
        td { (send.resolved.declared) }
        td { (send.resolved.line()) }
        td { span.bad[send.inspected.lowered] { (send.inspected.line()) } }
        td {
            span.bad[send.shortfall.is_some()] { (send.end_to_end.line()) }
            @if let Some(shortfall) = &send.shortfall { br; span.bad { (shortfall) } }
        }
    }
}

fn last_events(events: &Result<Vec<Value>, String>) -> Markup {
    let events = match events {
        Err(why) => return html! { p.bad { (why) } },
        Ok(events) if events.is_empty() => return none("No events."),
        Ok(events) => events,
    };
    let text = |event: &Value, name: &str| {
        event
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    html! {
        div.wide { table {
            tr { th { "time (UTC)" } th { "level" } th { "event" } th { "what happened" } }
            @for event in events {
                @let level = text(event, "level");
                tr {
                    td { (utc(event.get("at_unix_ms").and_then(Value::as_i64).unwrap_or_default())) }
                    td { span.bad[level == "error"] { (level) } }
                    td { code { (text(event, "code")) } }
                    td {
                        (text(event, "message"))
                        @if let Some(times) = event.get("times").and_then(Value::as_u64).filter(|t| *t > 1) {
                            span.dim { " (" (times) " times)" }
                        }
                    }
                }
            }
        } }
    }
}
