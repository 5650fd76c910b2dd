//! A small blocking HTTP/1.1 client for the loopback interface: keep-alive, lengths and chunks, and
//! timeouts on everything. It never retries by itself: whoever calls it wants to see each failure.

use std::io::{self, BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest wait for a connection, and for each read and write.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Longest line of an answer's head; no server of ours comes near it.
const MAX_LINE: u64 = 16 * 1024;

/// Most header lines of an answer.
const MAX_HEADERS: usize = 100;

/// Largest body of an answer.
const MAX_BODY: usize = 64 * 1024 * 1024;

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// `Retry-After` in seconds, where there was one.
    pub retry_after_s: Option<u64>,
    /// The body.
    pub body: Vec<u8>,
}

/// A client that keeps one connection to one server.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl Client {
    /// A client of the server at `address`; it connects with the first request.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            stream: None,
        }
    }

    /// Sends one request and reads the answer. After an error the connection is dropped, and the next
    /// request opens a new one; whether the server carried the request out is then unknown.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Answer> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(self.address)?,
        };
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.address);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        // One write: a second small one would wait for the first's acknowledgement.
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        stream.get_mut().write_all(&bytes)?;
        let (answer, keep) = read_answer(&mut stream)?;
        if keep {
            self.stream = Some(stream);
        }
        Ok(answer)
    }
}

/// Fetches one page. Only `http://ADDRESS:PORT/PATH` with a numeric address.
pub fn get(url: &str) -> io::Result<Answer> {
    let wrong = || Error::new(ErrorKind::InvalidInput, format!("not an address: {url}"));
    let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
    let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address = address.parse().map_err(|_| wrong())?;
    let close = [("connection", "close")];
    Client::new(address).request("GET", &format!("/{path}"), &close, b"")
}

fn connect(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

/// Reads an answer, and tells whether the connection can be used again.
fn read_answer(stream: &mut impl BufRead) -> io::Result<(Answer, bool)> {
    let line = read_line(stream)?;
    let status = line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split_whitespace().nth(1))
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| invalid(format!("not an HTTP answer: {line:?}")))?;
    let mut length = None;
    let mut chunked = false;
    let mut keep = true;
    let mut retry_after_s = None;
    for count in 0.. {
        let line = read_line(stream)?;
        if line.is_empty() {
            break;
        }
        if count >= MAX_HEADERS {
            return Err(invalid("too many headers".into()));
        }
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let parsed: usize = value
                    .parse()
                    .map_err(|_| invalid(format!("content-length {value:?}")))?;
                length = Some(parsed);
            }
            "transfer-encoding" => chunked = value.eq_ignore_ascii_case("chunked"),
            "connection" => keep = !value.eq_ignore_ascii_case("close"),
            "retry-after" => retry_after_s = value.parse().ok(),
            _ => {}
        }
    }
    let body = if chunked {
        read_chunks(stream)?
    } else if let Some(length) = length {
        read_exactly(stream, length)?
    } else if status == 204 || status == 304 {
        Vec::new()
    } else {
        keep = false;
        let mut body = Vec::new();
        stream.take(MAX_BODY as u64).read_to_end(&mut body)?;
        body
    };
    let answer = Answer {
        status,
        retry_after_s,
        body,
    };
    Ok((answer, keep))
}

fn read_chunks(stream: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = read_line(stream)?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(digits, 16)
            .map_err(|_| invalid(format!("chunk size {digits:?}")))?;
        if size == 0 {
            while !read_line(stream)?.is_empty() {}
            return Ok(body);
        }
        if body.len().saturating_add(size) > MAX_BODY {
            return Err(invalid("the answer is too long".into()));
        }
        body.extend(read_exactly(stream, size)?);
        read_line(stream)?;
    }
}

fn read_exactly(stream: &mut impl BufRead, length: usize) -> io::Result<Vec<u8>> {
    if length > MAX_BODY {
        return Err(invalid("the answer is too long".into()));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(body)
}

/// One line without its end.
fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    stream.take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(Error::new(
            ErrorKind::UnexpectedEof,
            "the connection closed inside an answer",
        ));
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| invalid("an answer's head is not text".into()))
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    /// A server that answers the connections in order, each with its texts in order, and returns what
    /// it was sent.
    fn server(connections: Vec<Vec<&'static str>>) -> (SocketAddr, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let mut requests = Vec::new();
            for answers in connections {
                let (stream, _) = listener.accept().unwrap();
                let mut stream = BufReader::new(stream);
                for answer in answers {
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        stream.read_line(&mut head).unwrap();
                    }
                    let length = head
                        .split_once("content-length: ")
                        .and_then(|(_, rest)| rest.split("\r\n").next())
                        .unwrap()
                        .parse()
                        .unwrap();
                    let mut body = vec![0; length];
                    stream.read_exact(&mut body).unwrap();
                    requests.push(head + &String::from_utf8(body).unwrap());
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                }
            }
            requests
        });
        (address, thread)
    }

    #[test]
    fn requests_share_a_connection_until_the_server_closes_it() {
        let (address, thread) = server(vec![
            vec![
                "HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\nok",
                "HTTP/1.1 503 Busy\r\nretry-after: 7\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            ],
            vec!["HTTP/1.1 204 No Content\r\n\r\n"],
        ]);
        let mut client = Client::new(address);
        let first = client
            .request("POST", "/a", &[("idempotency-key", "k1")], "é".as_bytes())
            .unwrap();
        assert_eq!((first.status, first.body.as_slice()), (202, &b"ok"[..]));
        let second = client.request("POST", "/b", &[], b"").unwrap();
        assert_eq!((second.status, second.retry_after_s), (503, Some(7)));
        let third = client.request("POST", "/c", &[], b"x").unwrap();
        assert_eq!(third.status, 204);
        let requests = thread.join().unwrap();
        assert!(requests[0].starts_with("POST /a HTTP/1.1\r\n"));
        assert!(requests[0].contains("idempotency-key: k1\r\n"));
        assert!(requests[0].ends_with("content-length: 2\r\n\r\né"));
    }

    #[test]
    fn a_chunked_answer_is_put_together() {
        let (address, thread) = server(vec![vec![
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
        ]]);
        let answer = get(&format!("http://{address}/page")).unwrap();
        assert_eq!(answer.body, b"abcde");
        assert!(thread.join().unwrap()[0].starts_with("GET /page HTTP/1.1\r\n"));
    }

    #[test]
    fn an_answer_that_breaks_off_or_is_not_http_is_an_error() {
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab",
            "HTTP/1.1 200 OK\r\n",
            "NONSENSE\r\n\r\n",
            "",
        ] {
            let (address, thread) = server(vec![vec![text]]);
            let mut client = Client::new(address);
            let result = client.request("GET", "/", &[], b"");
            thread.join().unwrap();
            assert!(result.is_err(), "{text:?} gave {result:?}");
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_memory_is_taken() {
        let (address, thread) = server(vec![vec![
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999\r\n\r\n",
        ]]);
        let error = Client::new(address)
            .request("GET", "/", &[], b"")
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        thread.join().unwrap();
    }
}
