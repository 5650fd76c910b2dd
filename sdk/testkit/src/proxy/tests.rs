//! Each fault against a server that echoes lines in upper case, byte by byte where it matters.

use super::*;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

const PATIENCE: Duration = Duration::from_secs(10);
/// Long enough to see that nothing comes.
const NOTHING: Duration = Duration::from_millis(200);

/// A server that keeps the lines it read, and answers each in upper case.
struct Echo {
    address: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
    bytes: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let bytes = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        let (kept, counted) = (Arc::clone(&lines), Arc::clone(&bytes));
        tasks.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (kept, counted) = (Arc::clone(&kept), Arc::clone(&counted));
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let mut line = String::new();
                    while let Ok(count @ 1..) = stream.read_line(&mut line).await {
                        counted.fetch_add(count as u64, Ordering::SeqCst);
                        let answer = line.to_uppercase();
                        if line.ends_with('\n') {
                            kept.lock().unwrap().push(line.trim().to_owned());
                        }
                        line.clear();
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self {
            address,
            lines,
            bytes,
            _tasks: tasks,
        }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    async fn until(&self, count: usize) {
        let from = Instant::now();
        while self.lines().len() < count {
            assert!(from.elapsed() < PATIENCE, "{:?}", self.lines());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn both() -> (Echo, Proxy) {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.address).await.unwrap();
    (echo, proxy)
}

async fn client(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.unwrap()
}

async fn say(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// What the client reads next; empty when the connection has ended.
async fn hear(stream: &mut TcpStream) -> String {
    let mut bytes = vec![0; 1024];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut bytes)).await;
    let count = read.expect("an answer or an end").unwrap_or(0);
    String::from_utf8(bytes[..count].to_vec()).unwrap()
}

async fn hears_nothing(stream: &mut TcpStream) {
    let mut byte = [0];
    let read = tokio::time::timeout(NOTHING, stream.read(&mut byte)).await;
    assert!(read.is_err(), "{read:?}");
}

#[tokio::test]
async fn without_a_fault_bytes_pass_both_ways_and_stand_in_the_transcript() {
    let (echo, proxy) = both().await;
    let mut stream = client(&proxy).await;
    say(&mut stream, "one\n").await;
    assert_eq!(hear(&mut stream).await, "ONE\n");
    assert_eq!(echo.lines(), ["one"]);
    let transcript = proxy.transcript();
    assert_eq!((transcript.sent("one"), transcript.arrived("one")), (1, 1));
    assert!(transcript.to_string().contains("<- ONE⏎"), "{transcript}");
    assert_eq!(proxy.fired(), 0);
}

#[tokio::test]
async fn a_request_cut_before_never_reaches_the_server_and_the_next_connection_is_whole() {
    let (echo, proxy) = both().await;
    proxy.arm(Fault::once(Trigger::text("two"), Action::CutBefore));
    let mut stream = client(&proxy).await;
    say(&mut stream, "one\n").await;
    assert_eq!(hear(&mut stream).await, "ONE\n");
    say(&mut stream, "two\n").await;
    assert_eq!(hear(&mut stream).await, "", "cut");
    assert!(proxy.wait_fired(PATIENCE).await);
    assert_eq!(echo.lines(), ["one"]);
    let mut again = client(&proxy).await;
    say(&mut again, "two\n").await;
    assert_eq!(hear(&mut again).await, "TWO\n", "it fires once");
    let transcript = proxy.transcript();
    assert_eq!((transcript.sent("two"), transcript.arrived("two")), (2, 1));
}

#[tokio::test]
async fn a_swallowed_reply_was_given_and_the_client_hears_nothing_until_the_cut() {
    let (echo, proxy) = both().await;
    proxy.arm(Fault::once(Trigger::text("two"), Action::SwallowReplies));
    let mut stream = client(&proxy).await;
    say(&mut stream, "two\n").await;
    echo.until(1).await;
    hears_nothing(&mut stream).await;
    proxy.cut();
    assert_eq!(hear(&mut stream).await, "");
    let swallowed = |entry: &Entry| entry.what == What::Swallowed(b"TWO\n".to_vec());
    assert!(proxy.transcript().entries().iter().any(swallowed));
}

#[tokio::test]
async fn a_cut_after_n_bytes_lets_exactly_those_through() {
    let (echo, proxy) = both().await;
    proxy.arm(Fault::once(Trigger::Bytes(7), Action::CutAfter));
    let mut stream = client(&proxy).await;
    say(&mut stream, "one\ntwo\nthree\n").await;
    assert!(proxy.wait_fired(PATIENCE).await);
    echo.until(1).await;
    let from = Instant::now();
    while echo.bytes.load(Ordering::SeqCst) < 7 {
        assert!(from.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(NOTHING).await;
    assert_eq!(echo.bytes.load(Ordering::SeqCst), 7);
    assert_eq!(
        echo.lines(),
        ["one"],
        "the second line was cut in its midst"
    );
}

#[tokio::test]
async fn a_cut_after_a_text_lets_it_through() {
    let (echo, proxy) = both().await;
    proxy.arm(Fault::once(Trigger::text("two\n"), Action::CutAfter));
    let mut stream = client(&proxy).await;
    say(&mut stream, "one\ntwo\nthree\n").await;
    echo.until(2).await;
    tokio::time::sleep(NOTHING).await;
    assert_eq!(echo.lines(), ["one", "two"]);
}

#[tokio::test]
async fn a_half_open_connection_is_silent_both_ways_and_stays_open() {
    let (echo, proxy) = both().await;
    proxy.arm(Fault::once(Trigger::text("two"), Action::HalfOpen));
    let mut stream = client(&proxy).await;
    say(&mut stream, "two\n").await;
    assert!(proxy.wait_fired(PATIENCE).await);
    hears_nothing(&mut stream).await;
    say(&mut stream, "three\n").await;
    hears_nothing(&mut stream).await;
    assert!(echo.lines().is_empty());
    proxy.cut();
    assert_eq!(hear(&mut stream).await, "");
}

#[tokio::test]
async fn delay_and_throttle_take_their_time_and_lose_nothing() {
    let (_echo, proxy) = both().await;
    proxy.arm(Fault::once(
        Trigger::Connect,
        Action::Delay(Duration::from_millis(300)),
    ));
    let mut slow = client(&proxy).await;
    let from = Instant::now();
    say(&mut slow, "one\n").await;
    assert_eq!(hear(&mut slow).await, "ONE\n");
    assert!(from.elapsed() >= Duration::from_millis(300));

    proxy.arm(Fault::once(Trigger::Connect, Action::Throttle(200)));
    let mut slow = client(&proxy).await;
    let text = format!("{}\n", "x".repeat(99));
    let from = Instant::now();
    say(&mut slow, &text).await;
    let mut heard = String::new();
    while heard.len() < text.len() {
        heard.push_str(&hear(&mut slow).await);
    }
    assert_eq!(heard, text.to_uppercase());
    // 100 bytes each way at 200 a second.
    assert!(from.elapsed() >= Duration::from_millis(450));
}

#[tokio::test]
async fn a_late_answer_comes_whole_and_those_after_it_are_not_late() {
    let (echo, proxy) = both().await;
    let late = Duration::from_millis(400);
    proxy.arm(Fault::once(Trigger::text("one"), Action::Late(late)));
    let mut stream = client(&proxy).await;
    let from = Instant::now();
    say(&mut stream, "one\n").await;
    echo.until(1).await;
    assert_eq!(hear(&mut stream).await, "ONE\n");
    assert!(from.elapsed() >= late);
    let from = Instant::now();
    say(&mut stream, "two\n").await;
    assert_eq!(hear(&mut stream).await, "TWO\n");
    assert!(from.elapsed() < late);
}

#[tokio::test]
async fn refused_connections_are_refused_by_the_system_and_taken_again_on_the_same_port() {
    let (_echo, proxy) = both().await;
    let mut open = client(&proxy).await;
    say(&mut open, "one\n").await;
    assert_eq!(hear(&mut open).await, "ONE\n");
    proxy.refuse(true);
    let from = Instant::now();
    while TcpStream::connect(proxy.address()).await.is_ok() {
        assert!(from.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    say(&mut open, "two\n").await;
    assert_eq!(hear(&mut open).await, "TWO\n", "open ones stay");
    proxy.refuse(false);
    let from = Instant::now();
    let mut again = loop {
        match TcpStream::connect(proxy.address()).await {
            Ok(stream) => break stream,
            Err(error) => assert!(from.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    say(&mut again, "three\n").await;
    assert_eq!(hear(&mut again).await, "THREE\n");
}

#[tokio::test]
async fn a_fault_for_ever_fires_on_each_connection_and_ends_when_disarmed() {
    let (echo, proxy) = both().await;
    proxy.arm(Fault::always(Trigger::text("x"), Action::CutBefore));
    for round in 1..=3 {
        let mut stream = client(&proxy).await;
        say(&mut stream, "x\n").await;
        assert_eq!(hear(&mut stream).await, "");
        assert_eq!(proxy.fired(), round);
    }
    proxy.disarm();
    let mut stream = client(&proxy).await;
    say(&mut stream, "x\n").await;
    assert_eq!(hear(&mut stream).await, "X\n");
    assert_eq!(echo.lines(), ["x"]);
    assert!(proxy.is_running());
}

#[tokio::test]
async fn a_fault_that_does_not_fire_says_so() {
    let (_echo, proxy) = both().await;
    proxy.arm(Fault::once(Trigger::text("never"), Action::CutBefore));
    let mut stream = client(&proxy).await;
    say(&mut stream, "one\n").await;
    assert_eq!(hear(&mut stream).await, "ONE\n");
    assert!(!proxy.wait_fired(NOTHING).await);
}
