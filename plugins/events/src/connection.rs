//! The API of a host, asked over HTTP. Each question is one request on a thread for blocking work.

use crate::config::ConnectionConfig;
use consign_plugin::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An answer is refused beyond this: a page of events is far smaller.
const MAX_ANSWER: u64 = 256 << 20;

/// A host that answers.
#[derive(Debug)]
pub struct Host {
    config: ConnectionConfig,
    agent: ureq::Agent,
}

#[async_trait]
impl Connector for Host {
    type Config = ConnectionConfig;
    const NAME: &'static str = "events";
    const TITLE: &'static str = "Consign Events";

    /// Asks nothing yet: a host that reads its own events serves them only once it runs.
    async fn connect(config: ConnectionConfig, _: &ConnectionContext) -> Result<Self, Failure> {
        if let Some(fault) = config.faults().into_iter().next() {
            return Err(Failure::config(("config", fault)));
        }
        let agent = ureq::Agent::config_builder()
            .timeout_connect(Some(config.timeouts.connect.get()))
            .timeout_global(Some(config.timeouts.request.get()))
            .http_status_as_error(false)
            .build()
            .into();
        Ok(Self { config, agent })
    }

    async fn probe(&self) -> Result<(), Failure> {
        self.events(vec![("limit", "1".to_owned())]).await.map(drop)
    }
}

impl Host {
    /// Events, oldest first unless the query says otherwise.
    pub(crate) async fn events(
        &self,
        query: Vec<(&'static str, String)>,
    ) -> Result<Vec<Value>, Failure> {
        self.get("events", query).await
    }

    /// The host's adapters: name, and the operation of the source.
    pub(crate) async fn adapters(&self) -> Result<Vec<(String, String)>, Failure> {
        let status: Status = self.get("status", Vec::new()).await?;
        let adapters = status.adapters.into_iter();
        Ok(adapters.map(|one| (one.name, one.source)).collect())
    }

    async fn get<T: DeserializeOwned + Send + 'static>(
        &self,
        what: &'static str,
        query: Vec<(&'static str, String)>,
    ) -> Result<T, Failure> {
        let endpoint = self.config.endpoint.trim_end_matches('/');
        let url = format!("{endpoint}/api/v1/{what}");
        let (agent, token) = (self.agent.clone(), self.config.token.clone());
        let asked = tokio::task::spawn_blocking(move || ask(&agent, &url, token.as_ref(), &query));
        asked
            .await
            .map_err(|error| Failure::other(("panicked", error.to_string())))?
    }
}

/// What is read of a host's state.
#[derive(Deserialize)]
struct Status {
    adapters: Vec<Adapter>,
}

#[derive(Deserialize)]
struct Adapter {
    name: String,
    source: String,
}

fn ask<T: DeserializeOwned>(
    agent: &ureq::Agent,
    url: &str,
    token: Option<&Secret>,
    query: &[(&'static str, String)],
) -> Result<T, Failure> {
    let mut request = agent.get(url);
    for (name, value) in query {
        request = request.query(name, value);
    }
    if let Some(token) = token {
        request = request.header("Authorization", format!("Bearer {}", token.expose()));
    }
    let down = |error: ureq::Error| Failure::down(("unreachable", format!("{url}: {error}")));
    let mut response = request.call().map_err(down)?;
    let status = response.status().as_u16();
    let text = response
        .body_mut()
        .with_config()
        .limit(MAX_ANSWER)
        .read_to_string()
        .map_err(down)?;
    match status {
        200 => serde_json::from_str(&text).map_err(|error| {
            let what = format!("{url} answered something else than a host does: {error}");
            Failure::other(("not_a_host", what))
        }),
        400 => Err(Failure::config(("refused", sentence(&text)))),
        401 | 403 => Err(Failure::denied((
            "denied",
            format!(
                "{url} answered {status}: set `token` to that host's console.token; {}",
                sentence(&text)
            ),
        ))),
        _ => Err(Failure::down((
            "status",
            format!("{url} answered {status}: {}", sentence(&text)),
        ))),
    }
}

/// The sentence in an error's document.
fn sentence(text: &str) -> String {
    serde_json::from_str::<Value>(text)
        .ok()
        .and_then(|value| value.get("error")?.as_str().map(str::to_owned))
        .unwrap_or_else(|| text.chars().take(200).collect())
}
