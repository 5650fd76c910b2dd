//! Error handler plugin: Acme Desk.

use consign_plugin::prelude::*;

/// Hands refused lines to the desk, and leaves the rest to people.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcmeDeskConfig {
    /// Tries of a message that a processor fails on. Minimum 1.
    pub tries: u32,
}

/// The handler.
pub struct AcmeDesk {
    config: AcmeDeskConfig,
}

#[async_trait]
impl ErrorHandler for AcmeDesk {
    type Config = AcmeDeskConfig;
    const NAME: &'static str = "acme_desk";
    const TITLE: &'static str = "Acme Desk";

    async fn open(config: AcmeDeskConfig, _: &FunctionContext) -> Result<Self, Failure> {
        if config.tries == 0 {
            return Err(Failure::config((
                "tries",
                "`tries: 0` gives up before the first; the least is 1",
            )));
        }
        Ok(Self { config })
    }

    async fn decide(&self, failure: &FailureReport, _: &Message) -> Decision {
        if failure.send.is_empty() && failure.attempts < self.config.tries {
            return Decision::Retry {
                after: std::time::Duration::from_secs(2),
            };
        }
        match (failure.class.as_str(), failure.divert.first()) {
            ("refused", Some(target)) => Decision::Divert {
                target: target.clone(),
                message: None,
            },
            _ => Decision::Park {
                reason: format!("{}: {}", failure.code, failure.message),
            },
        }
    }
}

/// The plugin and all it contains.
#[must_use]
pub fn plugin() -> Plugin {
    Plugin::new("acme_desk", env!("CARGO_PKG_VERSION")).error_handler::<AcmeDesk>()
}

consign_plugin::export_plugin!(plugin);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refused_line_goes_to_the_desk_and_all_else_to_people() {
        let config = AcmeDeskConfig { tries: 2 };
        let desk = AcmeDesk::open(config, &FunctionContext::default())
            .await
            .unwrap();
        let mut failure = FailureReport::default();
        failure.send = "line".to_owned();
        failure.class = "refused".to_owned();
        assert!(matches!(
            desk.decide(&failure, &Message::default()).await,
            Decision::Park { .. }
        ));
        failure.divert = vec!["a/desk/file".to_owned()];
        let said = desk.decide(&failure, &Message::default()).await;
        assert!(matches!(said, Decision::Divert { target, .. } if target == "a/desk/file"));
    }
}
