//! `consign failed`: looking into failed messages and acting on them.
#![allow(
    clippy::indexing_slicing,
    reason = "only JSON values are indexed by name, and answer null for what they do not have"
)]

use crate::cli::acting::{ActArgs, AppliedArg, Failed, Filter};
use crate::commands::events::time;
use crate::commands::jobs;
use crate::output::{CliError, Output, table};
use crate::session::Session;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use consign_config::HumanDuration;
use consign_ledger::{Applied, Cause, FailedFilter, FailedState, FailedSummary, ParkReason};
use consign_runtime::operator::{Bulk, KeyChoice, Request, Selection};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Bytes of records in one request of an import.
const IMPORT_BYTES: usize = 8 << 20;
/// Failed messages in a list without `--limit`.
const PAGE: u32 = 1_000;
/// Failures that a person reads; the rest are counted.
const SHOWN_FAILURES: usize = 20;

pub fn run(out: Output, command: Failed) -> Result<(), CliError> {
    match command {
        Failed::List {
            place,
            causes: true,
            all,
            ..
        } => {
            let value = Session::open(&place)?.ask(Request::FailedCauses { all })?;
            let causes: Vec<Cause> = parse(value)?;
            out.show(&causes, |causes| causes_table(causes))
        }
        Failed::List { place, filter, .. } => {
            let filter = filter_of(&filter)?;
            let limit = if filter.limit == 0 {
                PAGE
            } else {
                filter.limit
            };
            let value = Session::open(&place)?.ask(Request::FailedList { filter })?;
            let page: Vec<FailedSummary> = parse(value)?;
            out.ends_at(
                page.len(),
                limit,
                "--limit N shows more, --after ID the next",
            );
            out.show(&page, |page| list_table(page))
        }
        Failed::Show {
            place,
            id,
            body,
            original,
        } => {
            let session = Session::open(&place)?;
            if body || original {
                return raw(&session.ask(Request::FailedBody { id, original })?);
            }
            let value = session.ask(Request::FailedShow { id })?;
            out.show(&value, record_text)
        }
        Failed::SendAgain(args) => act(out, &args, Bulk::SendAgain, None),
        Failed::Skip(args) => act(out, &args, Bulk::Skip, None),
        Failed::Restore(args) => act(out, &args, Bulk::Restore, None),
        Failed::Confirm(args) => act(out, &args, Bulk::Confirm, None),
        Failed::RouteAgain { act: args, yes } => {
            act(out, &first_look(args, yes), Bulk::RouteAgain, None)
        }
        Failed::Purge { act: args, yes } => act(out, &first_look(args, yes), Bulk::Purge, None),
        Failed::Move { act: args, to } => act(out, &args, Bulk::Move, Some(to)),
        Failed::Edit {
            place,
            id,
            body_file,
            headers,
            same_key,
            new_key,
        } => {
            let body = body_file.as_deref().map(read_file).transpose()?;
            let key = match (same_key, new_key) {
                (true, _) => Some(KeyChoice::Same),
                (_, true) => Some(KeyChoice::New),
                _ => None,
            };
            let request = Request::FailedEdit {
                id,
                body: body.map(|body| BASE64.encode(body)),
                headers: headers_of(&headers)?,
                key,
            };
            let value = Session::open(&place)?.ask(request)?;
            out.show(&value, |value| {
                let split = match value["split_dependents"].as_u64() {
                    Some(n) if n > 0 => format!(
                        "; {n} writes that waited for it are failed messages of their own now"
                    ),
                    _ => String::new(),
                };
                format!("failed message {id} is edited and still parked{split}: consign failed send-again {id}")
            })
        }
        Failed::Export {
            place,
            file,
            redacted,
            filter,
        } => export(out, &Session::open(&place)?, &file, redacted, &filter),
        Failed::Import { place, file } => import(out, &Session::open(&place)?, &file),
    }
}

/// Without `--yes` these only say what they would do.
fn first_look(mut args: ActArgs, yes: bool) -> ActArgs {
    if !yes && !args.dry_run {
        args.dry_run = true;
        eprintln!("nothing is done yet; this is what would be. Add --yes to do it");
    }
    args
}

fn act(out: Output, args: &ActArgs, act: Bulk, to: Option<String>) -> Result<(), CliError> {
    let filter = filter_of(&args.filter)?;
    let selection = match (args.ids.is_empty(), filter == FailedFilter::default()) {
        (false, true) => Selection::Ids(args.ids.clone()),
        (false, false) => {
            return Err(CliError::input(
                "give either ids or a filter: with both nobody could tell which is meant",
            ));
        }
        (true, true) if !args.all => {
            return Err(CliError::input(
                "say which: ids, a filter such as --cause or --code, or --all",
            ));
        }
        (true, _) => Selection::Filter(Box::new(filter)),
    };
    let session = Session::open(&args.place)?;
    let answer = session.ask(Request::FailedAct {
        act,
        selection,
        dry_run: args.dry_run,
        rate_per_s: args.rate,
        to,
    })?;
    if let Some(id) = answer["job"].as_i64() {
        if args.wait {
            return jobs::wait(out, &session, id);
        }
        return out.show(&answer, |answer| {
            format!(
                "job {id}: {} messages; see `consign jobs {id}`",
                answer["total"]
            )
        });
    }
    out.show(&answer, acted_text)?;
    let failed = answer["failed"].as_array().map_or(0, Vec::len);
    if failed > 0 {
        return Err(CliError::failed(format!(
            "{failed} could not be done; the rest is"
        )));
    }
    Ok(())
}

fn acted_text(answer: &Value) -> String {
    let mut text = String::new();
    let list = |name: &str| answer[name].as_array().cloned().unwrap_or_default();
    if answer["dry_run"] == true {
        let _ = writeln!(text, "{} messages", answer["total"]);
        for line in list("messages") {
            let _ = writeln!(text, "{}", preview_line(&line));
        }
        return text;
    }
    for one in list("done") {
        let mut line = format!("{} done", one["id"]);
        for warning in one["warnings"].as_array().into_iter().flatten() {
            let _ = write!(line, "; mind: {}", warning.as_str().unwrap_or_default());
        }
        let _ = writeln!(text, "{line}");
    }
    let failed = list("failed");
    for one in failed.iter().take(SHOWN_FAILURES) {
        let why = one["error"].as_str().unwrap_or_default();
        let _ = writeln!(text, "{} not done: {why}", one["id"]);
    }
    if failed.len() > SHOWN_FAILURES {
        let _ = writeln!(text, "and {} more not done", failed.len() - SHOWN_FAILURES);
    }
    if text.is_empty() {
        text.push_str("no such messages");
    }
    text
}

fn preview_line(line: &Value) -> String {
    let word = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
    let mut text = format!("{} {} {}", line["id"], word("send"), word("state"));
    if line["may_have_landed"] == true {
        text.push_str("; it may have landed");
    }
    if let Some(writes) = line["routed"]["writes"].as_array() {
        let _ = match line["routed"]["route"].as_str() {
            Some(route) => write!(text, "; route {route} would claim it"),
            None => write!(text, "; {}", line["routed"]["outcome"]),
        };
        for one in writes {
            let _ = write!(text, "; send {}", one["send"].as_str().unwrap_or_default());
        }
    }
    if let Some(error) = line["error"].as_str() {
        let _ = write!(text, "; not possible: {error}");
    }
    text
}

/// The filter as the host understands it.
pub fn filter_of(filter: &Filter) -> Result<FailedFilter, CliError> {
    let mut states = Vec::new();
    for name in &filter.state {
        let state = FailedState::from_name(name).ok_or_else(|| {
            let names: Vec<&str> = FailedState::ALL.iter().map(|s| s.name()).collect();
            CliError::input(format!(
                "there is no state `{name}`; it is one of {}",
                names.join(", ")
            ))
        })?;
        states.push(state);
    }
    let reason = match &filter.reason {
        Some(name) => Some(ParkReason::from_name(name).ok_or_else(|| {
            let names: Vec<&str> = ParkReason::ALL.iter().map(|r| r.name()).collect();
            CliError::input(format!(
                "there is no reason `{name}`; it is one of {}",
                names.join(", ")
            ))
        })?),
        None => None,
    };
    let write_key = match &filter.key {
        Some(text) => Some(
            text.parse::<consign_pipeline::WriteKey>()
                .map_err(CliError::input)?
                .0,
        ),
        None => None,
    };
    Ok(FailedFilter {
        states,
        adapter: filter.adapter.clone(),
        route: filter.route.clone(),
        send: filter.send.clone(),
        connection: filter.connection.clone(),
        code: filter.code.clone(),
        cause: filter.cause,
        reason,
        applied: filter.applied.map(|applied| match applied {
            AppliedArg::No => Applied::No,
            AppliedArg::Maybe => Applied::Maybe,
        }),
        write_key,
        message_id: filter.message.clone(),
        since_unix_ms: filter.since.as_deref().map(ago).transpose()?,
        until_unix_ms: filter.until.as_deref().map(ago).transpose()?,
        text: filter.text.clone(),
        after_id: filter.after,
        limit: filter.limit.unwrap_or(0),
    })
}

/// The moment so long ago.
fn ago(text: &str) -> Result<i64, CliError> {
    let span: HumanDuration = text.parse().map_err(CliError::input)?;
    let now = consign_runtime::clock::wall_unix_ms_i64();
    Ok(now.saturating_sub(i64::try_from(span.as_ms()).unwrap_or(i64::MAX)))
}

fn headers_of(headers: &[String]) -> Result<BTreeMap<String, Option<String>>, CliError> {
    headers
        .iter()
        .map(|header| {
            let (name, value) = header.split_once('=').ok_or_else(|| {
                CliError::input(format!("--header takes NAME=VALUE, got `{header}`"))
            })?;
            Ok((
                name.to_owned(),
                Some(value.to_owned()).filter(|value| !value.is_empty()),
            ))
        })
        .collect()
}

fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, CliError> {
    serde_json::from_value(value).map_err(|error| {
        CliError::failed(format!(
            "the host's answer cannot be read: {error}; is it another version?"
        ))
    })
}

fn list_table(page: &[FailedSummary]) -> String {
    let rows: Vec<Vec<String>> = page
        .iter()
        .map(|line| {
            vec![
                line.id.to_string(),
                time(line.parked_unix_ms),
                line.state.name().to_owned(),
                format!("{}/{}/{}", line.adapter, line.route, line.send),
                line.code.clone(),
                match line.applied {
                    Applied::No => "no".to_owned(),
                    Applied::Maybe => "maybe".to_owned(),
                },
                line.message.clone(),
            ]
        })
        .collect();
    table(
        &[
            "id",
            "parked (UTC)",
            "state",
            "send",
            "code",
            "landed",
            "what was said",
        ],
        &rows,
        "no failed messages",
    )
}

fn causes_table(causes: &[Cause]) -> String {
    let rows: Vec<Vec<String>> = causes
        .iter()
        .map(|cause| {
            vec![
                cause.id.to_string(),
                cause.waiting.to_string(),
                cause.total.to_string(),
                cause.code.clone(),
                cause.connection.clone(),
                format!("{}/{}/{}", cause.adapter, cause.route, cause.send),
                time(cause.last_unix_ms),
                cause.last_message.clone(),
            ]
        })
        .collect();
    table(
        &[
            "cause",
            "waiting",
            "total",
            "code",
            "connection",
            "send",
            "last (UTC)",
            "what was said last",
        ],
        &rows,
        "no failed messages",
    )
}

/// A record for people: one line a field, nested fields with their path.
fn record_text(record: &Value) -> String {
    let mut text = String::new();
    lines(&mut text, "", record);
    text
}

fn lines(text: &mut String, path: &str, value: &Value) {
    let below = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    match value {
        Value::Null => {}
        Value::Object(map) => {
            for (name, value) in map {
                lines(text, &below(name), value);
            }
        }
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                lines(text, &below(&number.to_string()), item);
            }
        }
        Value::Number(number) if path.ends_with("_unix_ms") => {
            let when = number.as_i64().map_or_else(|| number.to_string(), time);
            let _ = writeln!(text, "{}: {when} UTC", path.trim_end_matches("_unix_ms"));
        }
        Value::String(word) => drop(writeln!(text, "{path}: {word}")),
        other => drop(writeln!(text, "{path}: {other}")),
    }
}

/// A body, byte for byte.
fn raw(answer: &Value) -> Result<(), CliError> {
    let bytes = BASE64
        .decode(answer["base64"].as_str().unwrap_or_default())
        .map_err(|error| CliError::failed(format!("the host's answer is not base64: {error}")))?;
    match std::io::stdout().lock().write_all(&bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(CliError::failed(
            format!("cannot write to standard output: {error}"),
        )),
        _ => Ok(()),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, CliError> {
    let read = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    read.map_err(|error| CliError::input(format!("{}: {error}", path.display())))
}

fn export(
    out: Output,
    session: &Session<'_>,
    file: &Path,
    redacted: bool,
    filter: &Filter,
) -> Result<(), CliError> {
    let mut filter = filter_of(filter)?;
    let most = u64::from(filter.limit);
    let to_stdout = file == Path::new("-");
    let fail = |error: std::io::Error| CliError::failed(format!("{}: {error}", file.display()));
    let mut target: Box<dyn std::io::Write> = if to_stdout {
        Box::new(std::io::stdout().lock())
    } else {
        // New, so that nothing is overwritten; private, because bodies are whole.
        let opened = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file)
            .map_err(|error| CliError::input(format!("{}: {error}", file.display())))?;
        Box::new(std::io::BufWriter::new(opened))
    };
    let mut written = 0_u64;
    loop {
        if most > 0 {
            let left = most.saturating_sub(written);
            if left == 0 {
                break;
            }
            filter.limit = u32::try_from(left).unwrap_or(u32::MAX);
        }
        let page = session.ask(Request::FailedExport {
            filter: filter.clone(),
            redacted,
        })?;
        let page = page.as_array().cloned().unwrap_or_default();
        let Some(last) = page.last().and_then(|record| record["id"].as_i64()) else {
            break;
        };
        for record in &page {
            writeln!(target, "{record}").map_err(fail)?;
            written += 1;
        }
        filter.after_id = Some(last);
    }
    target.flush().map_err(fail)?;
    if to_stdout {
        return Ok(());
    }
    let answer = json!({ "exported": written, "file": file.display().to_string() });
    out.show(&answer, |_| {
        format!("{written} failed messages written to {}", file.display())
    })
}

fn import(out: Output, session: &Session<'_>, file: &Path) -> Result<(), CliError> {
    let reader: Box<dyn std::io::BufRead> = if file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let opened = std::fs::File::open(file)
            .map_err(|error| CliError::input(format!("{}: {error}", file.display())))?;
        Box::new(std::io::BufReader::new(opened))
    };
    let mut added: Vec<Value> = Vec::new();
    let mut there = 0;
    let (mut records, mut bytes) = (Vec::new(), 0);
    let mut send = |records: Vec<Value>| -> Result<(), CliError> {
        if records.is_empty() {
            return Ok(());
        }
        let answer = session.ask(Request::FailedImport { records })?;
        added.extend(answer["added"].as_array().cloned().unwrap_or_default());
        there += answer["already_there"].as_u64().unwrap_or(0);
        Ok(())
    };
    for (number, line) in (1_usize..).zip(reader.lines()) {
        let line = line.map_err(|error| CliError::input(format!("{}: {error}", file.display())))?;
        if line.trim().is_empty() {
            continue;
        }
        let record: Value = serde_json::from_str(&line)
            .map_err(|error| CliError::input(format!("{}:{number}: {error}", file.display())))?;
        bytes += line.len();
        records.push(record);
        if bytes > IMPORT_BYTES {
            send(std::mem::take(&mut records))?;
            bytes = 0;
        }
    }
    send(records)?;
    let answer = json!({ "added": added, "already_there": there });
    out.show(&answer, |_| {
        format!("{} added, {there} were there already", added.len())
    })
}
