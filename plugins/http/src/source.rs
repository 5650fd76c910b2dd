//! `http.receive`: takes its place on the listener and keeps it until the host stops the source.

use crate::{
    config::{ConnectionConfig, ReceiveConfig},
    connection::Http,
    request::Senders,
};
use consign_plugin::prelude::*;
use hyper::Method;
use parking_lot::RwLock;
use std::time::Duration;
use tokio::{sync::mpsc, time::timeout};

/// How long a stopping source waits for the answers of its requests to be written. They are decided
/// by then: what the host had not accepted is released.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// The source of one adapter.
#[derive(Debug)]
pub struct Receive;

#[async_trait]
impl Source for Receive {
    type Connector = Http;
    type Config = ReceiveConfig;
    const OPERATION: &'static str = "http.receive";
    const TITLE: &'static str = "Receive";

    fn declaration() -> SourceDeclaration {
        SourceDeclaration {
            delivery: DeliveryType::SessionBased,
            identity: Identity::ClientKey,
            redelivery_bound_ms: None,
            note:
                "a client that got no answer does not know what became of its request: only under \
                   an idempotency key may it safely send it again"
                    .into(),
        }
    }

    fn resolve(connection: &ConnectionConfig, config: &ReceiveConfig) -> ResolvedSource {
        let reason = if config.require_client_key {
            format!("each request has its `{}`", config.client_key_header)
        } else {
            format!(
                "a request without `{}` is new each time it comes",
                config.client_key_header
            )
        };
        ResolvedSource {
            delivery: DeliveryType::SessionBased,
            identity: Identity::ClientKey,
            reason,
            faults: [connection.faults(), config.faults(connection)].concat(),
        }
    }

    fn claims(_: &ConnectionConfig, config: &ReceiveConfig) -> Vec<String> {
        let methods = config.methods.iter();
        methods
            .map(|method| format!("{method} {}", config.path))
            .collect()
    }

    async fn run(
        connection: Arc<Http>,
        config: ReceiveConfig,
        cx: SourceContext,
    ) -> Result<(), Failure> {
        let shared = connection.shared();
        if let Some(fault) = config.faults(&shared.config).into_iter().next() {
            return Err(Failure::config(("config", fault)));
        }
        let (deliverer, controls) = cx.split();
        let (busy, mut all_answered) = mpsc::channel(1);
        let endpoint = Arc::new(Endpoint {
            pattern: Pattern::new(&config.path),
            senders: Senders::new(&config),
            config,
            deliverer,
            _busy: busy,
        });
        let place = shared.places.claim(endpoint)?;
        loop {
            match controls.next().await {
                Control::Stop => break,
                Control::Seek(_) => {
                    tracing::warn!(
                        code = "seek_refused",
                        "requests are not kept: nothing to seek to"
                    );
                }
                // Settlements go to the requests themselves, and they look whether it is paused.
                _ => {}
            }
        }
        drop(place);
        // Nothing is ever sent: it ends when the last request has let go of the endpoint.
        if timeout(ANSWER_GRACE, all_answered.recv()).await.is_err() {
            tracing::warn!(
                code = "sessions_cut",
                "requests were under way when the source stopped"
            );
        }
        Ok(())
    }
}

/// What a request needs to know of its function.
pub(crate) struct Endpoint {
    pub config: ReceiveConfig,
    pub senders: Senders,
    pub deliverer: Deliverer,
    pattern: Pattern,
    /// Gone once every request is answered.
    _busy: mpsc::Sender<()>,
}

impl Endpoint {
    /// What the `*` of the path stands for.
    pub(crate) fn below<'a>(&self, path: &'a str) -> &'a str {
        path.strip_prefix(self.pattern.start.as_str())
            .unwrap_or_default()
    }
}

/// A path, or all below one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    start: String,
    whole: bool,
}

impl Pattern {
    fn new(path: &str) -> Self {
        let start = path.strip_suffix('*');
        Self {
            start: start.unwrap_or(path).to_owned(),
            whole: start.is_none(),
        }
    }

    fn fits(&self, path: &str) -> bool {
        if self.whole {
            path == self.start
        } else {
            path.starts_with(&self.start)
        }
    }
}

/// Who takes the requests of a listener.
#[derive(Default)]
pub(crate) struct Places(Arc<RwLock<Vec<Place>>>);

struct Place {
    pattern: Pattern,
    methods: Vec<String>,
    /// `None` while its source is stopped: the path is still known.
    endpoint: Option<Arc<Endpoint>>,
}

/// Where a request belongs.
pub(crate) enum Found {
    /// To this function.
    Endpoint(Arc<Endpoint>),
    /// To a function that is stopped.
    Stopped,
    /// To nobody with this method; these would do.
    NotAllowed(String),
    /// To nobody.
    Unknown,
}

/// A place that is held; dropped, it stands empty.
struct Held {
    places: Arc<RwLock<Vec<Place>>>,
    pattern: Pattern,
    methods: Vec<String>,
}

impl Drop for Held {
    fn drop(&mut self) {
        for place in self.places.write().iter_mut() {
            if place.pattern == self.pattern && place.methods == self.methods {
                place.endpoint = None;
            }
        }
    }
}

impl Places {
    fn claim(&self, endpoint: Arc<Endpoint>) -> Result<Held, Failure> {
        let (pattern, methods) = (endpoint.pattern.clone(), endpoint.config.methods.clone());
        let mut places = self.0.write();
        let overlaps = |place: &Place| {
            place.pattern == pattern && place.methods.iter().any(|m| methods.contains(m))
        };
        if places
            .iter()
            .any(|place| place.endpoint.is_some() && overlaps(place))
        {
            let what = format!(
                "another function of this connection takes {}",
                endpoint.config.path
            );
            return Err(Failure::config(("path_taken", what)));
        }
        places.retain(|place| !overlaps(place));
        places.push(Place {
            pattern: pattern.clone(),
            methods: methods.clone(),
            endpoint: Some(endpoint),
        });
        Ok(Held {
            places: Arc::clone(&self.0),
            pattern,
            methods,
        })
    }

    pub(crate) fn find(&self, path: &str, method: &Method) -> Found {
        let places = self.0.read();
        let fitting = || places.iter().filter(|place| place.pattern.fits(path));
        let takes = |place: &&Place| place.methods.iter().any(|m| m == method.as_str());
        // The whole path before all below one, then the longest.
        let best = fitting()
            .filter(takes)
            .max_by_key(|place| (place.pattern.whole, place.pattern.start.len()));
        match best {
            Some(Place {
                endpoint: Some(endpoint),
                ..
            }) => Found::Endpoint(Arc::clone(endpoint)),
            Some(_) => Found::Stopped,
            None => {
                let mut methods: Vec<&str> = fitting()
                    .flat_map(|place| &place.methods)
                    .map(String::as_str)
                    .collect();
                methods.sort_unstable();
                methods.dedup();
                if methods.is_empty() {
                    Found::Unknown
                } else {
                    Found::NotAllowed(methods.join(", "))
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
