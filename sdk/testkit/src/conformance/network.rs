//! The scenarios of a destination behind a network: the connection is broken through the proxy.

use super::stage::{BATCH, PATIENCE, Stage, TIMEOUT, copy_folder, put_back};
use super::{Failure, Result, Scenario};
use crate::proxy::{Action, Fault, Trigger, What};
use std::time::{Duration, Instant};

/// How late every answer is in [`Scenario::Slow`].
const SLOW: Duration = Duration::from_millis(250);

/// How long a request that was withheld is watched for an effect all the same.
const WATCH: Duration = Duration::from_millis(300);

/// How long a fault may take to fire: the message is durable already when the wait begins.
const FIRES: Duration = Duration::from_secs(20);

/// Past the destination's window by this much.
const BEYOND: Duration = Duration::from_millis(1_500);

pub(super) async fn run(stage: &mut Stage<'_>) -> Result<String> {
    match stage.scenario {
        Scenario::Clean => clean(stage).await,
        Scenario::CutBeforeRequest => withheld(stage, Action::CutBefore).await,
        Scenario::SilentPeer => withheld(stage, Action::HalfOpen).await,
        Scenario::ReplySwallowed => reply_swallowed(stage).await,
        Scenario::CutMidBatch => cut_mid_batch(stage).await,
        Scenario::Slow => slow(stage).await,
        Scenario::LateAnswer => late_answer(stage).await,
        Scenario::ServerAway => server_away(stage).await,
        Scenario::HostKilledInFlight => killed(stage, Duration::ZERO).await,
        Scenario::AgainOutsideWindow => {
            let window = stage.destination.window().unwrap_or_default();
            killed(stage, window + BEYOND).await
        }
        Scenario::SameWriteAgain => same_write_again(stage).await,
        other => Err(Failure::Broken(format!(
            "{other} is not a scenario of a network"
        ))),
    }
}

async fn clean(stage: &mut Stage<'_>) -> Result<String> {
    stage.host.start().await;
    for number in 0..20 {
        let id = stage.id(&format!("m{number}"));
        stage.post(&id).await;
    }
    Ok("20 messages, nothing broken".into())
}

/// Starts, warms up, arms the fault and sends one message into it.
async fn into_fault(stage: &mut Stage<'_>, applied: bool, action: Action) -> Result<String> {
    stage.host.start().await;
    stage.warm_up().await;
    let id = stage.id("hit");
    let when = stage.request(&id, applied);
    stage.proxy().arm(Fault::once(when, action));
    stage.post_interrupted(&id).await;
    fired(stage).await?;
    Ok(id)
}

pub(super) async fn fired(stage: &Stage<'_>) -> Result<()> {
    if stage.proxy().wait_fired(FIRES).await {
        return Ok(());
    }
    Err(Failure::NeverFired(
        "the bytes that should fire it never passed the proxy".into(),
    ))
}

async fn withheld(stage: &mut Stage<'_>, action: Action) -> Result<String> {
    let id = into_fault(stage, false, action).await?;
    if action == Action::HalfOpen {
        // Until the host has given the connection up, which takes its timeout.
        let from = Instant::now();
        while stage.proxy().transcript().sent(&id) < 2 && from.elapsed() < PATIENCE {
            tokio::time::sleep(WATCH).await;
        }
    }
    let transcript = stage.proxy().transcript();
    let entries = transcript.entries();
    let fired = entries
        .iter()
        .find(|entry| matches!(entry.what, What::Fired(_)));
    let connection = fired.map(|entry| entry.connection);
    let arrived_before = entries.iter().any(|entry| {
        Some(entry.connection) == connection
            && matches!(&entry.what, What::ToServer(bytes) if contains(bytes, &id))
    });
    if arrived_before {
        return Err(Failure::NeverFired(
            "the request reached the server before the cut".into(),
        ));
    }
    stage.drained().await;
    if !stage.destination.answers() {
        return Ok("the copy that the network had taken was withheld".into());
    }
    resent(stage, &id, 2)?;
    Ok("the first copy was withheld, the second arrived".into())
}

async fn reply_swallowed(stage: &mut Stage<'_>) -> Result<String> {
    let id = into_fault(stage, true, Action::SwallowReplies).await?;
    effect_before_resend(stage, &id).await?;
    stage.proxy().cut();
    stage.drained().await;
    resent(stage, &id, 2)?;
    Ok("effect 1 was there before the resend".into())
}

async fn cut_mid_batch(stage: &mut Stage<'_>) -> Result<String> {
    stage.host.start().await;
    stage.warm_up().await;
    let ids: Vec<String> = (0..BATCH).map(|n| stage.id(&format!("b{n}"))).collect();
    let middle = ids.get(BATCH / 2 - 1).cloned().unwrap_or_default();
    let when = Trigger::text(middle.as_bytes());
    stage.proxy().arm(Fault::once(when, Action::CutAfter));
    for id in &ids {
        stage.post_interrupted(id).await;
    }
    fired(stage).await?;
    // Until what had passed by then is written down, and the connection is cut.
    tokio::time::sleep(WATCH).await;
    let transcript = stage.proxy().transcript();
    let entries = transcript.entries();
    let at = entries
        .iter()
        .position(|entry| matches!(entry.what, What::Fired(_)));
    let connection = at
        .and_then(|at| entries.get(at))
        .map(|entry| entry.connection);
    let passed = ids.iter().filter(|id| {
        entries.iter().any(|entry| {
            Some(entry.connection) == connection
                && matches!(&entry.what, What::ToServer(bytes) if contains(bytes, id))
        })
    });
    let passed = passed.count();
    if passed == 0 || passed >= BATCH {
        return Err(Failure::NeverFired(format!(
            "{passed} of {BATCH} writes had passed, so it was not cut in its midst"
        )));
    }
    stage.drained().await;
    Ok(format!("{passed} of {BATCH} writes had passed"))
}

async fn slow(stage: &mut Stage<'_>) -> Result<String> {
    stage
        .proxy()
        .arm(Fault::always(Trigger::Connect, Action::Delay(SLOW)));
    stage.host.start().await;
    for number in 0..3 {
        let id = stage.id(&format!("s{number}"));
        stage.post_interrupted(&id).await;
        stage.drained().await;
    }
    let transcript = stage.proxy().transcript();
    let late = transcript
        .entries()
        .iter()
        .filter(|entry| matches!(entry.what, What::Delayed(_)));
    match late.count() {
        0 => Err(Failure::NeverFired("no answer was held back".into())),
        count => Ok(format!("{count} answers were {} ms late", SLOW.as_millis())),
    }
}

async fn late_answer(stage: &mut Stage<'_>) -> Result<String> {
    let late = TIMEOUT + Duration::from_secs(2);
    let id = into_fault(stage, true, Action::Late(late)).await?;
    effect_before_resend(stage, &id).await?;
    stage.drained().await;
    resent(stage, &id, 2)?;
    Ok(format!(
        "the answer came {} s late, effect 1 was there before the resend",
        late.as_secs()
    ))
}

async fn server_away(stage: &mut Stage<'_>) -> Result<String> {
    stage.host.start().await;
    stage.warm_up().await;
    stage.proxy().refuse(true);
    stage.proxy().cut();
    for number in 0..3 {
        let id = stage.id(&format!("a{number}"));
        stage.post_interrupted(&id).await;
    }
    let closed = |status: &serde_json::Value| {
        status["connections"].as_array().is_some_and(|connections| {
            connections
                .iter()
                .any(|c| c["name"] == "destination" && c["gate"] != "open")
        })
    };
    stage.host.until("the gate closed", closed).await;
    if stage.count().await.total() != 1 {
        return Err(Failure::NeverFired(
            "a message arrived while the server refused".into(),
        ));
    }
    stage.proxy().refuse(false);
    stage.drained().await;
    Ok("the gate was closed, nothing had arrived".into())
}

async fn killed(stage: &mut Stage<'_>, away: Duration) -> Result<String> {
    let id = into_fault(stage, true, Action::SwallowReplies).await?;
    effect_before_resend(stage, &id).await?;
    stage.host.kill();
    stage.proxy().cut();
    tokio::time::sleep(away).await;
    stage.host.start().await;
    stage.drained().await;
    resent(stage, &id, 2)?;
    let away = if away.is_zero() {
        String::new()
    } else {
        format!(", the host was away for {:.1} s", away.as_secs_f64())
    };
    Ok(format!("effect 1 was there before the kill{away}"))
}

async fn same_write_again(stage: &mut Stage<'_>) -> Result<String> {
    let id = into_fault(stage, true, Action::SwallowReplies).await?;
    effect_before_resend(stage, &id).await?;
    stage.host.kill();
    stage.proxy().cut();
    let copy = stage.place.folder.join("data.before");
    copy_folder(&stage.host.data(), &copy);
    stage.host.start().await;
    stage.drained().await;
    let before = stage.proxy().transcript().sent(&id);
    let effects = stage.count().await.times(&id);
    if stage.host.stop() != Some(0) {
        return Err(Failure::Broken("the host did not stop cleanly".into()));
    }
    put_back(&copy, &stage.host.data());
    // A copy that came of the first interruption is not one of the second.
    stage.allowed.most = stage.allowed.most.max(effects + stage.allowed.most - 1);
    stage.raise(&id);
    stage.host.start().await;
    stage.drained().await;
    resent(stage, &id, before + 1)?;
    Ok(format!(
        "the write was sent {} times, {effects} effect before the last",
        before + 1
    ))
}

/// The one copy that was sent has landed, and its answer is held: effect 1 is there before any resend.
pub(super) async fn effect_before_resend(stage: &Stage<'_>, id: &str) -> Result<()> {
    if !stage.landed(id, TIMEOUT).await {
        return Err(Failure::NeverFired(
            "the request passed the proxy and had no effect while its answer was held".into(),
        ));
    }
    match stage.proxy().transcript().sent(id) {
        1 => Ok(()),
        copies => Err(Failure::NeverFired(format!(
            "{copies} copies were sent before the first effect was seen"
        ))),
    }
}

/// A write that may have landed was sent again, where the promise asks for that.
fn resent(stage: &Stage<'_>, id: &str, copies: usize) -> Result<()> {
    let sent = stage.proxy().transcript().sent(id);
    if sent >= copies || !stage.level.resends() {
        return Ok(());
    }
    Err(Failure::Contradicted(format!(
        "the write was sent {sent} times and settled, though its last answer never came"
    )))
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}
