//! HTTP for people and programs that need not be well-behaved: the API and the metrics, one way for
//! both.
//!
//! One connection is one request. Its head must come within [`HEAD`], in [`BUFFER`] bytes, and it
//! is closed after the answer, or when it has lasted too long. [`CONNECTIONS`] are served at once;
//! the kernel keeps the others waiting, and they cost this process nothing.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Extensions, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tower::ServiceExt;

use crate::descriptor_reserve::DescriptorReserve;
use crate::server::control::Asker;

pub const CONNECTIONS: usize = 32;
/// How long the head of a request may take.
pub const HEAD: Duration = Duration::from_secs(2);
/// Bytes of a connection that are kept at most, in either direction.
const BUFFER: usize = 16 * 1024;
/// After an error that is not one connection's alone.
const PAUSE: Duration = Duration::from_millis(100);

/// Something to accept connections from.
pub trait Accept: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn accept_one(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Notes who is at its other end.
    fn note_peer(_stream: &Self::Stream, _extensions: &mut Extensions) {}
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept_one(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept_one(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }

    fn note_peer(stream: &UnixStream, extensions: &mut Extensions) {
        let user = stream.peer_cred().ok().map(|peer| peer.uid());
        extensions.insert(Asker { user });
    }
}

/// Answers until cancelled. A connection is closed after `longest`, whatever becomes of its
/// request.
pub async fn serve<L: Accept>(listener: L, router: Router, longest: Duration) {
    let gate = Arc::new(Semaphore::new(CONNECTIONS));
    let reserve = Arc::new(DescriptorReserve::new(1));
    loop {
        // Never closed.
        let Ok(permit) = gate.clone().acquire_owned().await else { return };
        let accepted = match listener.accept_one().await {
            // The client has already disconnected.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(_) => accept_with(&reserve, &listener).await,
            Ok(stream) => Some(stream),
        };
        let Some(stream) = accepted else { continue };
        let (router, reserve) = (router.clone(), reserve.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let _ = timeout(longest, connection::<L>(stream, router)).await;
            reserve.fill();
        });
    }
}

/// Accepts with a descriptor of the reserve; `None`, after a pause, where that does not help.
async fn accept_with<L: Accept>(reserve: &DescriptorReserve, listener: &L) -> Option<L::Stream> {
    reserve.give_up();
    let stream = timeout(PAUSE, listener.accept_one()).await.ok().and_then(Result::ok);
    if stream.is_none() {
        reserve.fill();
        sleep(PAUSE).await;
    }
    stream
}

async fn connection<L: Accept>(stream: L::Stream, router: Router) {
    let mut known = Extensions::new();
    L::note_peer(&stream, &mut known);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().extend(known.clone());
        router.clone().oneshot(request.map(Body::new))
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// What ends does so after [`HEAD`], 2 s, or at once.
    const SOON: Duration = Duration::from_secs(30);
    const LONG: Duration = Duration::from_secs(3600);

    async fn server(longest: Duration) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let address = listener.local_addr().expect("an address");
        let router = Router::new()
            .route("/hold", get(|| async { std::future::pending::<&str>().await }))
            .route("/", get(|| async { "well\n" }))
            .route("/large", get(|| async { vec![0; 64 << 20] }));
        tokio::spawn(serve(listener, router, longest));
        address
    }

    async fn send(address: std::net::SocketAddr, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        stream.write_all(bytes).await.expect("sent");
        stream
    }

    /// Everything until it is closed.
    async fn rest(mut stream: TcpStream) -> String {
        let mut all = Vec::new();
        let read = timeout(SOON, stream.read_to_end(&mut all)).await.expect("it is closed");
        let reset = read.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset);
        if reset { "reset".into() } else { String::from_utf8_lossy(&all).into_owned() }
    }

    const WHOLE: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

    #[tokio::test]
    async fn what_is_not_sent_in_time_is_closed() {
        let address = server(LONG).await;
        for head in [b"".as_slice(), b"GET / HTTP/1.1\r\nX: "] {
            let answer = rest(send(address, head).await).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
        }
        // A head without end.
        let long = [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 2 * BUFFER]].concat();
        let answer = rest(send(address, &long).await).await;
        assert!(answer == "reset" || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }

    #[tokio::test]
    async fn a_connection_is_one_answer_and_ends() {
        let address = server(LONG).await;
        let answer = rest(send(address, WHOLE).await).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nwell\n"), "{answer}");
        // Who does not read his answer is not waited for.
        let address = server(Duration::from_millis(200)).await;
        let stalled = send(address, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let got = rest(stalled).await.len();
        assert!(got < 64 << 20, "{got} bytes");
    }

    #[tokio::test]
    async fn the_thirty_third_connection_waits() {
        let address = server(LONG).await;
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS {
            open.push(send(address, b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n").await);
        }
        let mut waiting = send(address, WHOLE).await;
        let mut byte = [0];
        let early = timeout(HEAD / 4, waiting.read(&mut byte)).await;
        assert!(early.is_err(), "it was answered beside {CONNECTIONS} others");
        drop(open.pop());
        assert!(rest(waiting).await.starts_with("HTTP/1.1 200"));
    }
}
