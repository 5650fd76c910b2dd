//! The scenarios of a destination without a network: it is held back, and the process is killed.

use super::stage::{PATIENCE, Stage, copy_folder, lane, put_back};
use super::{Failure, Result, Scenario};
use serde_json::Value;
use std::time::{Duration, Instant};

/// How long the destination is held in [`Scenario::Slow`]: less than the send's timeout.
const SLOW: Duration = Duration::from_millis(1_500);

/// Kills until one meets a write that had landed and was not settled.
const KILLS: usize = 12;

/// Messages handed in before each of those kills.
const LOAD: usize = 24;

pub(super) async fn run(stage: &mut Stage<'_>) -> Result<String> {
    match stage.scenario {
        Scenario::Clean => clean(stage).await,
        Scenario::Slow => slow(stage).await,
        Scenario::KilledBeforeTheWrite => killed_before(stage).await,
        Scenario::HostKilledInFlight => killed_in_flight(stage).await,
        Scenario::SameWriteAgain => same_write_again(stage).await,
        other => Err(Failure::Broken(format!("{other} needs a network"))),
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

/// Accepts one message that cannot land, and returns its id.
async fn held(stage: &mut Stage<'_>) -> Result<(String, Box<dyn Send>)> {
    stage.host.start().await;
    stage.warm_up().await;
    let hold = stage.destination.hold(&stage.place).await;
    let id = stage.id("hit");
    stage.post_interrupted(&id).await;
    Ok((id, hold))
}

async fn nothing_landed(stage: &Stage<'_>, id: &str) -> Result<()> {
    if stage.count().await.times(id) == 0 {
        return Ok(());
    }
    Err(Failure::NeverFired(
        "the write landed while the destination was held".into(),
    ))
}

async fn slow(stage: &mut Stage<'_>) -> Result<String> {
    let (id, hold) = held(stage).await?;
    tokio::time::sleep(SLOW).await;
    nothing_landed(stage, &id).await?;
    drop(hold);
    stage.drained().await;
    Ok(format!(
        "held for {} ms with the write pending",
        SLOW.as_millis()
    ))
}

async fn killed_before(stage: &mut Stage<'_>) -> Result<String> {
    let (id, hold) = held(stage).await?;
    // In flight, and waiting for the destination.
    tokio::time::sleep(Duration::from_millis(700)).await;
    stage.host.kill();
    nothing_landed(stage, &id).await?;
    drop(hold);
    stage.host.start().await;
    stage.drained().await;
    Ok("no effect at the kill".into())
}

async fn same_write_again(stage: &mut Stage<'_>) -> Result<String> {
    let (id, hold) = held(stage).await?;
    tokio::time::sleep(Duration::from_millis(700)).await;
    stage.host.kill();
    nothing_landed(stage, &id).await?;
    let copy = stage.place.folder.join("data.before");
    copy_folder(&stage.host.data(), &copy);
    drop(hold);
    stage.host.start().await;
    stage.drained().await;
    let effects = stage.count().await.times(&id);
    if effects != 1 || stage.host.stop() != Some(0) {
        return Err(Failure::Broken(format!(
            "{effects} effects before the data folder was put back"
        )));
    }
    put_back(&copy, &stage.host.data());
    stage.host.start().await;
    let status = stage.drained().await;
    let requests = lane(&status).and_then(|lane| lane["requests"].as_u64());
    if requests.unwrap_or_default() == 0 {
        return Err(Failure::NeverFired(
            "the host sent nothing after its folder was put back".into(),
        ));
    }
    Ok("effect 1 was there before the same write was sent again".into())
}

/// Kills under load until a kill met writes that had landed and were not settled: after the start
/// they are pending though their effects are there, and are sent again.
async fn killed_in_flight(stage: &mut Stage<'_>) -> Result<String> {
    let mut met = 0;
    for kill in 0..KILLS {
        stage.host.start().await;
        let settled = |status: &Value| {
            let lane = lane(status)?;
            Some(lane["accepted"].as_u64()? - lane["pending"].as_u64()?)
        };
        let before = stage.count().await.total();
        let hold = stage.destination.hold(&stage.place).await;
        for number in 0..LOAD {
            let id = stage.id(&format!("k{kill}n{number}"));
            stage.post_interrupted(&id).await;
        }
        drop(hold);
        // The first of the load has landed: now, before the host has noted it.
        let from = Instant::now();
        while stage.count().await.total() <= before {
            if from.elapsed() > PATIENCE {
                return Err(Failure::Broken("nothing landed".into()));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stage.host.kill();
        let landed = stage.count().await.total();
        // Held, so that the state of the start can be read before anything moves.
        let hold = stage.destination.hold(&stage.place).await;
        stage.host.start().await;
        let status = stage
            .host
            .until("its lane", |status| lane(status).is_some())
            .await;
        let durable = settled(&status).unwrap_or_default();
        drop(hold);
        stage.drained().await;
        met += u64::try_from(landed)
            .unwrap_or_default()
            .saturating_sub(durable);
        if met > 0 {
            return Ok(format!(
                "{met} writes had landed and were not settled at kill {}",
                kill + 1
            ));
        }
        stage.host.kill();
    }
    Err(Failure::NeverFired(format!(
        "none of {KILLS} kills met a write that had landed and was not settled"
    )))
}
