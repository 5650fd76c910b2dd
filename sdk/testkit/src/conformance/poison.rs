//! A message that cannot pass, straight from a source that hands over again: without an error handler it is
//! held and never acknowledged, with `isolate_poison` it is set aside and the rest flows.
#![allow(
    clippy::expect_used,
    reason = "a stage that cannot be used fails its scenario by panicking"
)]

use super::origin::{SourceStage, WATCH, accepted};
use super::parked::failed;
use super::stage::PATIENCE;
use super::{Failure, Result};
use std::time::{Duration, Instant};

/// Messages before the one that is refused, and after it.
const AROUND: usize = 20;

impl SourceStage<'_> {
    pub(super) async fn poison_held(&mut self) -> Result<String> {
        let poison = self.offer_poison().await;
        self.until_held().await?;
        let from = Instant::now();
        let mut arrived = 0;
        while from.elapsed() < WATCH {
            let settled = self.origin.settled(&self.place).await;
            let status = self.host.get("/api/v1/status").await.unwrap_or_default();
            let taken = accepted(&status["adapters"][0]);
            if settled.is_some_and(|settled| settled > taken) {
                return Err(Failure::Contradicted(format!(
                    "{} messages are settled at the source and only {taken} are accepted: \
                     acknowledgement ran ahead of acceptance",
                    settled.unwrap_or_default()
                )));
            }
            arrived = self.count().total();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if self.count().times(&poison) > 0 || arrived >= self.ids.len() {
            return Err(Failure::NeverFired(
                "the destination took the message that it should refuse".into(),
            ));
        }
        // The destination takes it after all.
        self.database()
            .execute_batch(
                "BEGIN IMMEDIATE; CREATE TABLE taken (id TEXT, key TEXT UNIQUE); \
                 INSERT INTO taken SELECT id, key FROM t; DROP TABLE t; \
                 ALTER TABLE taken RENAME TO t; COMMIT",
            )
            .expect("another table");
        self.rows(self.ids.len()).await?;
        self.all_settled().await?;
        Ok(format!(
            "{arrived} of {} arrived while one was held",
            self.ids.len()
        ))
    }

    pub(super) async fn poison_isolated(&mut self) -> Result<String> {
        let poison = self.offer_poison().await;
        self.rows(self.ids.len() - 1).await?;
        self.all_settled().await?;
        let parked = failed(&self.host, &["list", "--state", "parked"])?;
        let parked = parked.as_array().map_or(0, Vec::len);
        if parked != 1 {
            return Err(Failure::Contradicted(format!(
                "{parked} messages are set aside, and one is refused"
            )));
        }
        self.set_aside = Some(poison);
        Ok("the one was set aside and acknowledged, the rest arrived".into())
    }

    /// Starts, and offers a message that is refused between others.
    async fn offer_poison(&mut self) -> String {
        self.host.start().await;
        self.offer(AROUND).await;
        let poison = format!("{}-poisonz", self.place.tag);
        let alone = std::slice::from_ref(&poison);
        self.origin.offer(&self.place, alone).await;
        self.ids.push(poison.clone());
        self.offer(AROUND).await;
        poison
    }

    /// Waits until the host says that it holds a message.
    async fn until_held(&self) -> Result<()> {
        let from = Instant::now();
        while from.elapsed() < PATIENCE {
            let events = self.host.get("/api/v1/events").await.unwrap_or_default();
            if events.to_string().contains("\"message_held\"") {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(Failure::Contradicted(
            "a message is held, and no event says so".into(),
        ))
    }
}
