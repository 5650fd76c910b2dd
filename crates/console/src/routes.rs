//! The routes, and how they are served.

use crate::{
    CommandError, EventQuery, HostView, Login, Readiness, Status,
    access::{Access, Open, Refused, token_needed},
    metrics, page,
};
use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Query, Request, State, rejection::QueryRejection},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use std::{
    io,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::net::TcpListener;

/// How long a host may take to describe itself; one that takes longer makes no progress.
const STATUS_MAX: Duration = Duration::from_secs(5);

/// Events on the page.
const PAGE_EVENTS: u32 = 50;

/// Events in one answer at most; the next are asked for with `after_id`.
const EVENTS_MAX: u32 = 10_000;

/// A command's document at most: an import brings bodies.
const COMMAND_MAX_BYTES: usize = 64 << 20;

/// How a person names themselves to a command; what it says stands in histories.
const OPERATOR_HEADER: &str = "x-consign-operator";

/// Characters of such a name at most.
const OPERATOR_MAX: usize = 64;

struct Console<V> {
    view: Arc<V>,
    access: Access,
}

/// Serves until its task is ended. Beyond loopback a token must be given.
///
/// # Errors
/// No token although the listener can be reached from elsewhere, or the listener fails.
pub async fn serve<V: HostView>(
    listener: TcpListener,
    view: Arc<V>,
    login: impl Into<Login>,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let login = login.into();
    if login.token.is_none() && token_needed(&address) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "the console listens on {address}, which others can reach: set CONSIGN_TOKEN, or listen on 127.0.0.1"
            ),
        ));
    }
    axum::serve(listener, router(view, login, !token_needed(&address))).await
}

/// The routes. `loopback` says that only this machine can reach them.
pub fn router<V: HostView>(view: Arc<V>, login: impl Into<Login>, loopback: bool) -> Router {
    let console = Arc::new(Console {
        view,
        access: Access {
            login: login.into(),
            loopback,
        },
    });
    Router::new()
        .route("/health/live", get(async || "live\n"))
        .route("/health/ready", get(ready))
        .route("/metrics", get(metrics_text))
        .route("/api/v1/status", get(status_json))
        .route("/api/v1/events", get(events_json))
        .route("/api/v1/promises", get(promises_json))
        .route("/api/v1/login", get(login_json))
        .route(
            "/api/v1/commands",
            post(command).layer(DefaultBodyLimit::max(COMMAND_MAX_BYTES)),
        )
        .route("/", get(page_html))
        .fallback(async || {
            error(
                StatusCode::NOT_FOUND,
                "no such page: see / or /api/v1/status",
            )
        })
        .method_not_allowed_fallback(async || {
            error(
                StatusCode::METHOD_NOT_ALLOWED,
                "only GET; what changes the host is POST /api/v1/commands",
            )
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&console), guard))
        .with_state(console)
}

/// Lets through who may ask, and adds the headers that every answer has.
async fn guard<V: HostView>(
    State(console): State<Arc<Console<V>>>,
    request: Request,
    next: Next,
) -> Response {
    let open = match request.uri().path() {
        "/health/live" | "/health/ready" => Open::Always,
        "/metrics" | "/api/v1/login" => Open::OnLoopback,
        "/api/v1/commands" => Open::Acting,
        _ => Open::Never,
    };
    let mut response = match console.access.check(open, request.headers(), request.uri()) {
        Ok(()) => next.run(request).await,
        Err(Refused::Token) => {
            let mut response = error(
                StatusCode::UNAUTHORIZED,
                "send the token: Authorization: Bearer $CONSIGN_TOKEN",
            );
            response.headers_mut().insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer, Basic realm=\"Consign\""),
            );
            response
        }
        Err(Refused::Host) => error(
            StatusCode::FORBIDDEN,
            "ask by this machine's own name (127.0.0.1 or localhost), or set CONSIGN_TOKEN",
        ),
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn error(status: StatusCode, sentence: &str) -> Response {
    (status, Json(json!({ "error": sentence }))).into_response()
}

/// The status, unless the host takes too long to say it.
async fn status<V: HostView>(console: &Console<V>) -> Result<Status, Response> {
    tokio::time::timeout(STATUS_MAX, console.view.status())
        .await
        .map_err(|_| error(StatusCode::SERVICE_UNAVAILABLE, NOT_ANSWERING))
}

const NOT_ANSWERING: &str = "the host has not described itself within 5 s: it makes no progress";

async fn ready<V: HostView>(State(console): State<Arc<Console<V>>>, request: Request) -> Response {
    let readiness = match tokio::time::timeout(STATUS_MAX, console.view.status()).await {
        Ok(status) => status.readiness,
        Err(_) => Readiness {
            ready: false,
            reasons: vec![NOT_ANSWERING.to_owned()],
        },
    };
    let code = if readiness.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    // The reasons name adapters and lanes, which are for those who may see them.
    let may_see = console
        .access
        .check(Open::OnLoopback, request.headers(), request.uri())
        .is_ok();
    let body = if may_see {
        json!(readiness)
    } else {
        json!({ "ready": readiness.ready })
    };
    (code, Json(body)).into_response()
}

async fn metrics_text<V: HostView>(State(console): State<Arc<Console<V>>>) -> Response {
    match status(&console).await {
        Ok(status) => (
            [(
                header::CONTENT_TYPE,
                "text/plain; version=0.0.4; charset=utf-8",
            )],
            metrics::render(&status),
        )
            .into_response(),
        Err(response) => response,
    }
}

async fn status_json<V: HostView>(State(console): State<Arc<Console<V>>>) -> Response {
    match status(&console).await {
        Ok(status) => Json(status).into_response(),
        Err(response) => response,
    }
}

async fn events_json<V: HostView>(
    State(console): State<Arc<Console<V>>>,
    query: Result<Query<EventQuery>, QueryRejection>,
) -> Response {
    let mut query = match query {
        Ok(Query(query)) => query,
        Err(rejection) => return error(StatusCode::BAD_REQUEST, &rejection.body_text()),
    };
    query.limit = query.limit.min(EVENTS_MAX);
    match console.view.events(query).await {
        Ok(events) => Json(events).into_response(),
        Err(sentence) => error(StatusCode::BAD_REQUEST, &sentence),
    }
}

async fn promises_json<V: HostView>(State(console): State<Arc<Console<V>>>) -> Response {
    match status(&console).await {
        Ok(status) => {
            let routes: Vec<Value> = status
                .adapters
                .iter()
                .flat_map(|adapter| {
                    adapter.routes.iter().map(|route| {
                        json!({
                            "adapter": adapter.name,
                            "source": adapter.source,
                            "route": route.name,
                            "promise": route.promise,
                            "sends": route.sends,
                        })
                    })
                })
                .collect();
            Json(routes).into_response()
        }
        Err(response) => response,
    }
}

/// Where the token for commands is kept: its path, not what is in it.
async fn login_json<V: HostView>(State(console): State<Arc<Console<V>>>) -> Response {
    let file = &console.access.login.token_file;
    Json(json!({ "token_file": file.as_ref().map(|path| path.display().to_string()) }))
        .into_response()
}

async fn command<V: HostView>(
    State(console): State<Arc<Console<V>>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let command: Value = match serde_json::from_slice(&body) {
        Ok(command) => command,
        Err(why) => {
            let sentence = format!("the body must be one JSON document: {why}");
            return error(StatusCode::BAD_REQUEST, &sentence);
        }
    };
    let who = headers
        .get(OPERATOR_HEADER)
        .and_then(|value| value.to_str().ok())
        .map(|name| name.chars().filter(|c| !c.is_control()).take(OPERATOR_MAX))
        .map(String::from_iter)
        .filter(|name: &String| !name.trim().is_empty())
        .unwrap_or_else(|| "api".to_owned());
    match console.view.command(command, who).await {
        Ok(answer) => Json(answer).into_response(),
        Err(CommandError::Input(sentence)) => error(StatusCode::BAD_REQUEST, &sentence),
        Err(CommandError::Failed(sentence)) => error(StatusCode::CONFLICT, &sentence),
    }
}

async fn page_html<V: HostView>(State(console): State<Arc<Console<V>>>) -> Response {
    let status = match status(&console).await {
        Ok(status) => status,
        Err(response) => return response,
    };
    let events = console
        .view
        .events(EventQuery {
            newest_first: true,
            limit: PAGE_EVENTS,
            ..EventQuery::default()
        })
        .await;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
    Html(page::render(&status, &events, now).into_string()).into_response()
}
