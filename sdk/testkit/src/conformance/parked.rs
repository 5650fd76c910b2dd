//! A write parks, and a person sends it again from Failed messages.
//!
//! Behind a network its request is applied each time and every answer of it is lost, while others are
//! delivered: that is what parks it. So its effect is there before the person acts, and what the resend
//! makes of it is the destination's answer to its key. Without a network the destination refuses it.
#![allow(
    clippy::expect_used,
    reason = "a stage that cannot be used fails its scenario by panicking"
)]

use super::network::{effect_before_resend, fired};
use super::stage::Stage;
use super::{Access, Allowed, Failure, Level, Result};
use crate::host::{self, Host};
use crate::proxy::{Action, Fault};
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

/// A write parks after its timeouts and the evidence that others are delivered.
const PARKS: Duration = Duration::from_secs(120);

/// How long a request and its answer may take on the way to and from the server.
const ANSWERED: Duration = Duration::from_millis(300);

/// A further message is handed in as evidence this often, so many at most.
const EVIDENCE: (Duration, u32) = (Duration::from_secs(3), 20);

pub(super) async fn run(stage: &mut Stage<'_>) -> Result<String> {
    match stage.destination.access() {
        Access::Network { .. } => unanswered(stage).await,
        Access::Local => refused(stage).await,
    }
}

async fn unanswered(stage: &mut Stage<'_>) -> Result<String> {
    stage.host.start().await;
    stage.warm_up().await;
    let id = stage.id("hit");
    let when = stage.request(&id, true);
    stage
        .proxy()
        .arm(Fault::always(when, Action::SwallowReplies));
    stage.post_interrupted(&id).await;
    fired(stage).await?;
    effect_before_resend(stage, &id).await?;
    let why = until_parked(stage).await?;
    stage.proxy().disarm();
    stage.proxy().cut();
    let before = stage.count().await.times(&id);
    let sent = stage.proxy().transcript().sent(&id);
    if stage.level == Level::EffectivelyOnce && before != 1 {
        return Err(Failure::Contradicted(format!(
            "{before} effects before anybody sent it again"
        )));
    }
    if stage.level != Level::EffectivelyOnce {
        // What the outage allowed, and the copy that the person asked for.
        let most = before.min(stage.allowed.most) + 1;
        stage.allowed = Allowed {
            least: before,
            most,
        };
        stage.raise(&id);
    }
    send_again(&stage.host)?;
    // It joins its lane a moment after the command has answered.
    let from = Instant::now();
    while stage.proxy().transcript().sent(&id) <= sent && from.elapsed() < EVIDENCE.0 * 5 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    until_delivered(stage).await?;
    if stage.proxy().transcript().sent(&id) <= sent {
        return Err(Failure::NeverFired(
            "the host settled it and sent nothing".into(),
        ));
    }
    Ok(format!(
        "{why}: effect {before} was there before it was sent again"
    ))
}

async fn refused(stage: &mut Stage<'_>) -> Result<String> {
    stage.host.start().await;
    stage.warm_up().await;
    let id = stage.id("hit");
    let refusal = stage.destination.refuse(&stage.place, &id).await;
    stage.post(&id).await;
    let why = until_parked(stage).await?;
    if stage.count().await.times(&id) > 0 {
        return Err(Failure::NeverFired(
            "it parked, and its effect was there all the same".into(),
        ));
    }
    drop(refusal);
    stage.allowed = Allowed::ONE;
    send_again(&stage.host)?;
    until_delivered(stage).await?;
    Ok(format!("{why}: no effect before it was sent again"))
}

/// Waits until one message is parked, handing in others meanwhile: that they are delivered is the
/// evidence that the fault is the write's. Returns why it parked.
async fn until_parked(stage: &mut Stage<'_>) -> Result<String> {
    let (from, mut others) = (Instant::now(), 0);
    let shares = stage.destination.shares_connection();
    let mut fired = 0;
    loop {
        if shares && stage.proxy().fired() > fired {
            // The others would get no answer either: they go on over a new connection.
            tokio::time::sleep(ANSWERED).await;
            fired = stage.proxy().fired();
            stage.proxy().cut();
        }
        let parked = failed(&stage.host, &["list", "--state", "parked"])?;
        if let Some(first) = parked.as_array().and_then(|list| list.first()) {
            let reason = first["reason"].as_str().unwrap_or("parked");
            return Ok(reason.to_owned());
        }
        if from.elapsed() > PARKS {
            return Err(Failure::NeverFired(format!(
                "nothing parked within {} s",
                PARKS.as_secs()
            )));
        }
        if others < EVIDENCE.1 && from.elapsed() >= EVIDENCE.0 * others {
            let id = stage.id(&format!("other{others}"));
            // It may be on its way beside the other, in one batch or on one connection.
            stage.post_interrupted(&id).await;
            others += 1;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until nothing is parked and nothing pending.
async fn until_delivered(stage: &Stage<'_>) -> Result<()> {
    let from = Instant::now();
    loop {
        stage.drained().await;
        let parked = failed(&stage.host, &["list", "--state", "parked"])?;
        if parked.as_array().is_some_and(Vec::is_empty) {
            stage.drained().await;
            return Ok(());
        }
        if from.elapsed() > PARKS {
            return Err(Failure::Contradicted(format!(
                "it was sent again and parked once more: {parked}"
            )));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn send_again(host: &Host) -> Result<()> {
    failed(host, &["send-again", "--all"]).map(drop)
}

/// What a person types.
pub(super) fn failed(host: &Host, args: &[&str]) -> Result<Value> {
    let output = Command::new(&host::built().consign)
        .arg("failed")
        .args(args)
        .arg("--json")
        .env("CONSIGN_HOST", host.url(""))
        .env("CONSIGN_OPERATOR", "conformance")
        .env_remove("CONSIGN_TOKEN")
        .current_dir(host.config().parent().expect("the scenario's folder"))
        .output()
        .expect("consign runs");
    if !output.status.success() {
        return Err(Failure::Broken(format!(
            "`consign failed {}`: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        )));
    }
    Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
}
