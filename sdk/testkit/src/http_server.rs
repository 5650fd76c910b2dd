//! An HTTP server of our own that counts: every request is kept as it came, POST and PATCH add an entry
//! each, PUT stores one document per path, whatever it is sent twice. It answers what it is told to.
//!
//! For destinations behind HTTP whose real product keeps no effects, and for the tests of an author's
//! connector: how a connector takes a status, a redirect, a pause that is asked for.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A head or a body beyond this is none.
const MAX_BYTES: usize = 16 << 20;

/// A request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `POST`.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// Names in lower case, in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Request {
    /// The first header of this name (in lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// What is answered to one request.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// The status; 0 cuts the connection instead.
    pub status: u16,
    /// Further headers.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
    /// Before the answer.
    pub pause: Duration,
}

impl Answer {
    /// An answer with this status and nothing else.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    /// The same with a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same with a body.
    #[must_use]
    pub fn body(mut self, body: impl Into<String>) -> Self {
        self.body = body.into();
        self
    }
}

#[derive(Debug, Default)]
struct State {
    requests: Vec<Request>,
    /// What POST and PATCH have added.
    entries: Vec<Request>,
    /// What PUT has stored, by path.
    documents: BTreeMap<String, Request>,
    /// What is answered next, by path.
    told: BTreeMap<String, VecDeque<Answer>>,
}

/// The server. Stops when it is dropped.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    _tasks: JoinSet<()>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpServer {
    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// No port could be bound.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state: Arc<Mutex<State>> = Arc::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&state)));
        Ok(Self {
            address,
            state,
            _tasks: tasks,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every request, in order.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.state).requests.clone()
    }

    /// What is there: an entry for each accepted POST and PATCH, a document for each path of a PUT.
    pub fn effects(&self) -> Vec<Request> {
        let state = lock(&self.state);
        let documents = state.documents.values();
        state.entries.iter().chain(documents).cloned().collect()
    }

    /// What it answers to the next request for this path (without its query). Such a request has an
    /// effect only where the status is 2xx. Without this it answers 200.
    pub fn answer(&self, path: &str, answer: Answer) {
        let mut state = lock(&self.state);
        state
            .told
            .entry(path.to_owned())
            .or_default()
            .push_back(answer);
    }

    /// Serves one stream that something else has accepted (TLS).
    pub fn serve(&self, stream: impl tokio::io::AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let state = Arc::clone(&self.state);
        tokio::spawn(async move { serve(stream, &state).await });
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                let state = Arc::clone(&state);
                connections.spawn(async move { serve::<TcpStream>(stream, &state).await });
            }
        }
    }
}

async fn serve<S>(stream: S, state: &Mutex<State>)
where
    S: tokio::io::AsyncRead + AsyncWrite + Unpin,
{
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await {
        let answer = take(request, state);
        tokio::time::sleep(answer.pause).await;
        if answer.status == 0 {
            return;
        }
        let mut text = format!("HTTP/1.1 {} Told\r\n", answer.status);
        for (name, value) in &answer.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str(&format!(
            "content-length: {}\r\n\r\n{}",
            answer.body.len(),
            answer.body
        ));
        if stream.get_mut().write_all(text.as_bytes()).await.is_err()
            || stream.get_mut().flush().await.is_err()
        {
            return;
        }
    }
}

/// Keeps the request, does what it asks for, and says what is answered.
fn take(request: Request, state: &Mutex<State>) -> Answer {
    let mut state = lock(state);
    let path = request.path.split('?').next().unwrap_or_default();
    let told = state.told.get_mut(path).and_then(VecDeque::pop_front);
    let answer = told.unwrap_or_else(|| Answer::status(200));
    state.requests.push(request.clone());
    if (200..300).contains(&answer.status) {
        match request.method.as_str() {
            "POST" | "PATCH" => state.entries.push(request),
            "PUT" => drop(state.documents.insert(request.path.clone(), request)),
            _ => {}
        }
    }
    answer
}

/// The next whole request; none where the stream ends before that.
async fn read(stream: &mut (impl AsyncBufRead + Unpin)) -> Option<Request> {
    let line = line(stream).await?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let line = self::line(stream).await?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut request = Request {
        method,
        path,
        headers,
        body: Vec::new(),
    };
    if let Some(length) = request.header("content-length") {
        let length: usize = length.parse().ok().filter(|length| *length <= MAX_BYTES)?;
        request.body = vec![0; length];
        stream.read_exact(&mut request.body).await.ok()?;
    }
    Some(request)
}

async fn line(stream: &mut (impl AsyncBufRead + Unpin)) -> Option<String> {
    let mut line = String::new();
    match stream.read_line(&mut line).await {
        Ok(1..) if line.ends_with('\n') => Some(line.trim_end().to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn say(server: &HttpServer, text: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn posts_add_up_puts_replace_and_a_part_of_a_request_is_none() {
        let server = HttpServer::start().await.unwrap();
        let post = "POST /in?a=1 HTTP/1.1\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\nhi";
        assert!(say(&server, &format!("{post}{post}")).await.contains("200"));
        let put = "PUT /a HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
        say(&server, &format!("{put}{put}")).await;
        say(&server, &post[..post.len() - 1]).await;
        server.answer("/in", Answer::status(503).header("retry-after", "7"));
        assert!(say(&server, post).await.contains("retry-after: 7"));
        let effects = server.effects();
        assert_eq!(effects.len(), 3);
        assert_eq!(effects[0].header("idempotency-key"), Some("k"));
        assert_eq!(effects[0].body, b"hi");
        assert_eq!(server.requests().len(), 5);
    }
}
