//! `isolate_poison`: one message that cannot pass must not hold back the rest.

use consign_plugin::prelude::*;

/// Sets a message aside that fails again and again, so that what stands behind it flows on.
///
/// A write that its destination refused, or whose policy is spent, is set aside at once: the host has
/// already told it from an outage. A message that a processor fails on, or that cannot be rendered, is
/// tried `attempts` times first; a processor's own outage that lasts longer than that sets messages
/// aside too, and they can be routed again from Failed messages. Where they go: to the first send that
/// `divert:` lists, or to Failed messages where it lists none.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IsolatePoisonConfig {
    /// How often a message may fail before it is set aside. Default 5, minimum 1.
    #[schemars(range(min = 1))]
    pub attempts: u32,
    /// Time between two tries. Default `2s`.
    pub wait: HumanDuration,
}

impl Default for IsolatePoisonConfig {
    fn default() -> Self {
        Self {
            attempts: 5,
            wait: HumanDuration::from_secs(2),
        }
    }
}

/// The handler.
pub struct IsolatePoison {
    config: IsolatePoisonConfig,
}

#[async_trait]
impl ErrorHandler for IsolatePoison {
    type Config = IsolatePoisonConfig;
    const NAME: &'static str = "isolate_poison";
    const TITLE: &'static str = "Isolate poison";

    async fn open(config: IsolatePoisonConfig, _: &FunctionContext) -> Result<Self, Failure> {
        if config.attempts == 0 {
            return Err(Failure::config((
                "attempts_zero",
                "attempts: 0 would set every message aside untried; the least is 1",
            )));
        }
        Ok(Self { config })
    }

    async fn decide(&self, failure: &FailureReport, _: &Message) -> Decision {
        let before_any_write = failure.send.is_empty();
        if before_any_write && failure.attempts < self.config.attempts {
            return Decision::Retry {
                after: self.config.wait.get(),
            };
        }
        match failure.divert.first() {
            Some(target) => Decision::Divert {
                target: target.clone(),
                message: None,
            },
            None => Decision::Park {
                reason: format!("{} after {} attempts", failure.code, failure.attempts),
            },
        }
    }
}
