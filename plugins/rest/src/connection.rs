//! The client, and what is shown to the service with each request.
//!
//! * The client repeats nothing: a request that had no answer may have been applied, and whether it is
//!   sent again is the host's to decide. It follows no redirect.
//! * An access token is shared by all requests. It is renewed shortly before it ends, and once when the
//!   service answers 401: a request that was refused for its token was not applied and is sent again.

use crate::config::{ApiKey, ConnectionConfig, OAuth2, address};
use crate::dial::{Dialer, basic, failure};
use crate::outcome::chain;
use bytes::Bytes;
use consign_plugin::prelude::*;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use url::Url;
use url::form_urlencoded::Serializer;

/// Connections that wait for the next request are closed after this long, before most services do.
const IDLE: Duration = Duration::from_secs(30);

/// Bytes of an answer that are read; what a service says beyond that is of no use here.
const MAX_ANSWER: usize = 256 << 10;

/// A token is renewed this long before it ends.
const EARLY: Duration = Duration::from_secs(30);

/// How long a token is used that does not say when it ends.
const UNTOLD: Duration = Duration::from_secs(300);

/// An answer: its head, and the beginning of its body.
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: hyper::HeaderMap,
    pub body: Bytes,
}

/// An HTTP service.
pub struct Rest {
    config: ConnectionConfig,
    endpoint: Url,
    dialer: Dialer,
    client: Client<Dialer, Full<Bytes>>,
    token: Mutex<Option<Token>>,
}

/// An access token.
#[derive(Clone)]
struct Token {
    authorization: Secret,
    until: Instant,
}

/// A token endpoint's answer (RFC 6749, section 5.1).
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    expires_in: Option<u64>,
}

#[async_trait]
impl Connector for Rest {
    type Config = ConnectionConfig;
    const NAME: &'static str = "rest";
    const TITLE: &'static str = "REST API";

    async fn connect(config: ConnectionConfig, _: &ConnectionContext) -> Result<Self, Failure> {
        if let Some(fault) = config.faults().into_iter().next() {
            return Err(Failure::config(("config", fault)));
        }
        let endpoint = address("endpoint", &config.endpoint)
            .map_err(|fault| Failure::config(("config", fault)))?;
        let dialer = Dialer::new(&config).await?;
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .retry_canceled_requests(false)
            .build(dialer.clone());
        let connection = Self {
            config,
            endpoint,
            dialer,
            client,
            token: Mutex::default(),
        };
        connection.probe().await?;
        Ok(connection)
    }

    /// A connection can be made and a token had; with `probe_path`, the service answers.
    async fn probe(&self) -> Result<(), Failure> {
        let within = self.config.timeouts.request.get();
        let probing = async {
            self.authorization(None).await?;
            let Some(path) = &self.config.probe_path else {
                let uri = uri(&self.endpoint)?;
                return self.dialer.reach(&uri).await.map(drop);
            };
            let url = self.url(path).map_err(|text| ("probe_path", text));
            let request = Request::get(uri(&url.map_err(Failure::config)?)?);
            let request = request.body(Full::default()).map_err(fault)?;
            let answer = self.ask(request).await?;
            match answer.status.as_u16() {
                status @ 502..=504 => Err(Failure::down((
                    "unavailable",
                    format!("it answers {status}"),
                ))),
                401 | 407 => Err(Failure::denied((
                    "not_authorized",
                    "it refuses our credentials",
                ))),
                _ => Ok(()),
            }
        };
        let probed = tokio::time::timeout(within, probing).await;
        probed.unwrap_or_else(|_| Err(Failure::down(("timeout", "the service does not answer"))))
    }
}

fn fault(error: impl std::fmt::Display) -> Failure {
    Failure::config(("request", error.to_string()))
}

fn uri(url: &Url) -> Result<Uri, Failure> {
    url.as_str().parse().map_err(fault)
}

impl Rest {
    pub(crate) fn config(&self) -> &ConnectionConfig {
        &self.config
    }

    /// The endpoint with a path behind it.
    pub(crate) fn url(&self, path: &str) -> Result<Url, String> {
        let mut url = self.endpoint.clone();
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}{path}"));
        let whole = url.path().len() >= base.len() && url.path().starts_with(&base);
        if whole {
            Ok(url)
        } else {
            Err(format!("`{path}` leads out of the endpoint"))
        }
    }

    /// Sends a request with what shows who we are, once more where its token was refused.
    ///
    /// # Errors
    /// `Err(Ok(_))`: there was no answer. `Err(Err(_))`: it was not sent, since no token was to be had.
    pub(crate) async fn send(
        &self,
        request: &Request<Full<Bytes>>,
    ) -> Result<Answer, Result<hyper_util::client::legacy::Error, Failure>> {
        let mut refused: Option<Secret> = None;
        loop {
            let mut request = request.clone();
            let shown = self.authorization(refused.as_ref()).await.map_err(Err)?;
            self.show(&mut request, shown.as_ref()).map_err(Err)?;
            let answer = self.exchange(request).await.map_err(Ok)?;
            let renewable = self.config.oauth2.is_some() && refused.is_none();
            if answer.status != StatusCode::UNAUTHORIZED || !renewable {
                return Ok(answer);
            }
            refused = shown;
        }
    }

    /// The same for a question, where no answer is an outage.
    async fn ask(&self, request: Request<Full<Bytes>>) -> Result<Answer, Failure> {
        self.send(&request).await.map_err(|error| match error {
            Ok(error) => failure(&error),
            Err(failure) => failure,
        })
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, hyper_util::client::legacy::Error> {
        let (head, body) = self.client.request(request).await?.into_parts();
        // The status is the answer; a body that breaks off or goes on for ever takes nothing from it.
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: body.map(|body| body.to_bytes()).unwrap_or_default(),
        })
    }

    fn show(
        &self,
        request: &mut Request<Full<Bytes>>,
        authorization: Option<&Secret>,
    ) -> Result<(), Failure> {
        let plain = request.uri().scheme_str() == Some("http");
        let proxy = self.dialer.proxy_authorization().filter(|_| plain);
        let headers = request.headers_mut();
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, secret(authorization)?);
        }
        if let Some(ApiKey { header, value }) = &self.config.api_key {
            let name = HeaderName::from_bytes(header.as_bytes()).map_err(fault)?;
            headers.insert(name, secret(value)?);
        }
        if let Some(authorization) = proxy {
            headers.insert(PROXY_AUTHORIZATION, secret(authorization)?);
        }
        Ok(())
    }

    /// What `Authorization` is to say; another token than the refused one.
    async fn authorization(&self, refused: Option<&Secret>) -> Result<Option<Secret>, Failure> {
        if let Some(auth) = &self.config.auth {
            return Ok(Some(basic(&auth.username, &auth.password)));
        }
        if let Some(token) = &self.config.bearer_token {
            return Ok(Some(bearer(token.expose())));
        }
        let Some(oauth2) = &self.config.oauth2 else {
            return Ok(None);
        };
        // Held while a token is had, so that all who need one wait for the same.
        let mut known = self.token.lock().await;
        if let Some(token) = &*known
            && token.until > Instant::now()
            && Some(&token.authorization) != refused
        {
            return Ok(Some(token.authorization.clone()));
        }
        *known = None;
        let token = self.granted(oauth2).await?;
        let authorization = token.authorization.clone();
        *known = Some(token);
        Ok(Some(authorization))
    }

    async fn granted(&self, oauth2: &OAuth2) -> Result<Token, Failure> {
        // Encoded first (RFC 6749, section 2.3.1).
        let encoded = |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
        let (id, password): (String, String) = (
            encoded(&oauth2.client_id),
            encoded(oauth2.client_secret.expose()),
        );
        let request = Request::builder()
            .method(Method::POST)
            .uri(&oauth2.token_endpoint)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(AUTHORIZATION, secret(&basic(&id, &Secret::new(password)))?);
        let mut request = request.body(Full::from(form(oauth2))).map_err(fault)?;
        if let Some(authorization) = self.dialer.proxy_authorization()
            && request.uri().scheme_str() == Some("http")
        {
            request
                .headers_mut()
                .insert(PROXY_AUTHORIZATION, secret(authorization)?);
        }
        let asked = Instant::now();
        let within = self.config.timeouts.request.get();
        let answer = tokio::time::timeout(within, self.exchange(request)).await;
        let answer = answer
            .map_err(|_| Failure::down(("token_timeout", "the token endpoint does not answer")))?
            .map_err(|error| Failure::down(("token", chain(&error))))?;
        let status = answer.status.as_u16();
        match status {
            200..=299 => {}
            408 | 429 | 500..=599 => {
                return Err(Failure::down((
                    "token",
                    format!("the token endpoint answers {status}"),
                )));
            }
            // Its words may quote what was sent, so they are not passed on.
            _ => {
                return Err(Failure::denied((
                    "token",
                    format!("the token endpoint refuses us: {status}"),
                )));
            }
        }
        let granted: Granted = serde_json::from_slice(&answer.body).map_err(|_| {
            Failure::denied((
                "token",
                "the token endpoint's answer has no access_token in JSON",
            ))
        })?;
        let lasts = granted.expires_in.map_or(UNTOLD, Duration::from_secs);
        Ok(Token {
            authorization: bearer(&granted.access_token),
            until: asked + lasts.saturating_sub(EARLY.min(lasts / 2)),
        })
    }
}

/// What is asked of a token endpoint.
fn form(oauth2: &OAuth2) -> String {
    let mut form = Serializer::new(String::new());
    form.append_pair("grant_type", "client_credentials");
    if !oauth2.scopes.is_empty() {
        form.append_pair("scope", &oauth2.scopes.join(" "));
    }
    if let Some(audience) = &oauth2.audience {
        form.append_pair("audience", audience);
    }
    form.finish()
}

fn bearer(token: &str) -> Secret {
    Secret::new(format!("Bearer {token}"))
}

fn secret(value: &Secret) -> Result<HeaderValue, Failure> {
    let header = HeaderValue::from_str(value.expose());
    let mut header =
        header.map_err(|_| Failure::config(("secret", "a credential holds what no header can")))?;
    header.set_sensitive(true);
    Ok(header)
}
