//! Several hosts share one source: a second one joins while messages come in, is asked to stop, joins
//! again and is killed. What it had goes to the first, and what either had accepted arrives from there.
#![allow(
    clippy::expect_used,
    reason = "a stage that cannot be used fails its scenario by panicking"
)]

use super::origin::{CREDIT, MORE_THAN_FIT, SourceStage, accepted};
use super::{Failure, Result};
use crate::host::Host;
use std::time::{Duration, Instant};

/// Messages offered at a time, so that some come in at every moment.
const STEP: usize = 40;

/// How often.
const EVERY: Duration = Duration::from_millis(200);

/// How long a host that joins may take to get its share.
const SHARE_WAIT: Duration = Duration::from_secs(60);

impl SourceStage<'_> {
    pub(super) async fn shared(&mut self) -> Result<String> {
        let Some(mut second) = self.second.take() else {
            return Err(Failure::Broken("there is no second host".into()));
        };
        self.host.start().await;
        self.offer(STEP).await;
        self.rows(STEP / 2).await?;
        // The first is full when the second joins, so that what moves is in process.
        let hold = self.database();
        hold.execute_batch("BEGIN IMMEDIATE")
            .expect("the write lock");
        self.offer(MORE_THAN_FIT).await;
        self.host
            .until("the first host is full", |status| {
                status["adapters"][0]["in_process"].as_u64() >= Some(CREDIT / 2)
            })
            .await;
        second.start().await;
        let mut took = self.until_it_has_a_share(&second).await?;
        let given_back = released(&self.host).await;
        drop(hold);
        self.offer(STEP).await;
        let code = second.stop();
        if code != Some(0) {
            return Err(Failure::Broken(format!(
                "SIGTERM ended the second host with {code:?}"
            )));
        }
        self.offer(STEP).await;
        second.start().await;
        took += self.until_it_has_a_share(&second).await?;
        self.offer(STEP).await;
        second.kill();
        self.offer(STEP).await;
        // What it had accepted arrives from its own folder.
        second.start().await;
        self.second = Some(second);
        self.complete().await?;
        self.all_settled().await?;
        Ok(format!(
            "{} messages; the second host took {took} before it was stopped and killed; the first gave back {given_back} that it held",
            self.ids.len()
        ))
    }

    /// Offers messages until the second host has taken some; how many.
    async fn until_it_has_a_share(&mut self, second: &Host) -> Result<u64> {
        let from = Instant::now();
        loop {
            self.offer(STEP).await;
            let status = second.get("/api/v1/status").await.unwrap_or_default();
            let took = accepted(&status["adapters"][0]);
            if took > 0 {
                return Ok(took);
            }
            if from.elapsed() > SHARE_WAIT {
                return Err(Failure::NeverFired(
                    "the second host got no share of the messages".into(),
                ));
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

async fn released(host: &Host) -> u64 {
    let status = host.get("/api/v1/status").await.unwrap_or_default();
    let released = &status["adapters"][0]["outcomes"]["released"];
    released.as_u64().unwrap_or_default()
}
