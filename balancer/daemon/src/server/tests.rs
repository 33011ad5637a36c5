//! The API over a real socket, with well-behaved and other clients.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringway_api::client::http;
use ringway_api::client::requests::Reload;
use ringway_api::documents::changes::Changes;
use ringway_api::documents::status::Status;
use ringway_api::error::{Error, Kind};

use super::BODY_LIMIT;
use crate::server::api;
use crate::snapshot::{Snapshot, StatusStore};

/// A socket path of its own, removed at the end.
struct Socket(PathBuf);

impl Socket {
    fn new(name: &str) -> Socket {
        let file = format!("ringway-api-{}-{name}.sock", std::process::id());
        Socket(std::env::temp_dir().join(file))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs `ask` on a thread of its own while a server answers.
async fn with_server<T: Send + 'static>(
    socket: &Socket,
    ask: impl FnOnce(&Path) -> T + Send + 'static,
) -> T {
    let status_store = Arc::new(StatusStore::new("gw1", None));
    status_store.post(Snapshot { node: "gw1".into(), ..Snapshot::default() });
    let listener = api::listen(&socket.0, "choose").expect("listens");
    let (control, mut commands) = tokio::sync::mpsc::channel::<super::control::Request>(1);
    // Says what it was asked for, as a daemon that cannot do it.
    let daemon = tokio::spawn(async move {
        while let Some((command, reply)) = commands.recv().await {
            let _ = reply.send(Err(Error::configuration(format!("{command:?}"), "mend it")));
        }
    });
    let (shield, mut shield_changes) = tokio::sync::mpsc::channel(1);
    let shielding = tokio::spawn(async move {
        while let Some((change, _, reply)) = shield_changes.recv().await {
            let reply: super::control::ShieldReply = reply;
            let _ = reply.send(Err(Error::configuration(format!("{change:?}"), "mend it")));
        }
    });
    let control = super::control::Control { changes: control, shield };
    let serving = tokio::spawn(api::serve(listener, status_store, control));
    let path = socket.0.clone();
    let answer = tokio::task::spawn_blocking(move || ask(&path)).await.expect("asked");
    serving.abort();
    daemon.abort();
    shielding.abort();
    answer
}

/// Sends bytes as they are; returns the whole answer.
fn raw(socket: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).expect("connects");
    // The server may answer, and close, before it has read everything.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn request(line: &str, headers: &str) -> Vec<u8> {
    format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n").into_bytes()
}

#[tokio::test]
async fn status_comes_back_as_it_was_posted() {
    let socket = Socket::new("status");
    let status: Status =
        with_server(&socket, |path| http::get(path, "/v1/status").expect("status")).await;
    assert_eq!((status.schema.as_str(), status.node.as_str()), ("ringway.status/1", "gw1"));
    assert!(status.healthy && status.daemon.running);
}

#[tokio::test]
async fn what_cannot_be_answered_is_told_why() {
    let socket = Socket::new("errors");
    with_server(&socket, |path| {
        for (line, headers, status, words) in [
            ("GET /v1/nothing", "", "404", "/v1/status"),
            ("POST /v1/status", "Content-Length: 0\r\n", "405", "use GET"),
            ("POST /v1/status", "Content-Length: 99999999\r\n", "413", "65536"),
            ("GET /v1/status", "Content-Length: x\r\n", "400", ""),
            ("nonsense", "", "400", ""),
        ] {
            let answer = raw(path, &request(line, headers));
            let first = answer.lines().next().unwrap_or_default();
            assert!(first.contains(status) && answer.contains(words), "{line} {headers}: {answer}");
        }
    })
    .await;
}

#[tokio::test]
async fn oversized_bodies_are_refused() {
    let socket = Socket::new("oversized");
    let answer = with_server(&socket, |path| {
        let size = BODY_LIMIT + 1;
        let mut bytes = request("POST /v1/status", &format!("Content-Length: {size}\r\n"));
        bytes.extend(vec![b'x'; size]);
        raw(path, &bytes)
    })
    .await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("\"remedy\""), "{answer}");
}

#[tokio::test]
async fn many_at_once_are_all_answered() {
    let socket = Socket::new("many");
    with_server(&socket, |path| {
        let ask = |path: PathBuf| move || raw(&path, &request("GET /v1/status", ""));
        let askers: Vec<_> = (0..40).map(|_| std::thread::spawn(ask(path.to_owned()))).collect();
        for asker in askers {
            let answer = asker.join().expect("asked");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_socket_is_for_its_group_and_taken_once() {
    let socket = Socket::new("socket");
    let first = api::listen(&socket.0, "choose").expect("listens");
    let mode = std::fs::metadata(&socket.0).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let refusal = api::listen(&socket.0, "choose").expect_err("taken");
    assert!(refusal.what.contains("another process answers"), "{refusal}");
    drop(first);
    // What a killed daemon leaves is no obstacle.
    api::listen(&socket.0, "choose").expect("listens again");
    let nobody = http::get::<Status>(Path::new("/nonexistent/api.sock"), "/v1/status");
    assert!(matches!(nobody, Err(http::Failure::NotRunning)));
}

#[tokio::test]
async fn orders_reach_the_daemon_and_its_refusal_comes_back_as_it_was() {
    let socket = Socket::new("orders");
    with_server(&socket, |path| {
        let one = r#"{"action":"drain","service":"web","backend":"10.0.0.2"}"#;
        let block = r#"{"change":"add","prefix":"192.0.2.0/24","action":"block"}"#;
        for (line, body, status, words) in [
            ("POST /v1/reload", "", "422", "Reload { dry_run: false"),
            ("POST /v1/reload", r#"{"dry_run":true}"#, "422", "Reload { dry_run: true"),
            ("POST /v1/reload", "{", "422", "cannot be understood: EOF"),
            ("GET /v1/reload", "", "405", "use POST"),
            ("POST /v1/backend", one, "422", r#"Drain { service: \"web\", backend"#),
            ("POST /v1/backend", "", "422", "cannot be understood"),
            ("POST /v1/backend", r#"{"action":"stop"}"#, "422", "unknown variant `stop`"),
            ("POST /v1/overrides/clear", "", "422", "Clear { service: None, backend: None }"),
            ("POST /v1/overrides/clear", r#"{"service":"a"}"#, "422", r#"Some(\"a\")"#),
            ("POST /v1/shield", block, "422", "Add(ShieldEntry { prefix: Prefix"),
            ("POST /v1/shield", "", "422", "cannot be understood"),
            ("POST /v1/shield", r#"{"change":"mode","mode":null}"#, "422", "Mode { mode: None }"),
            ("GET /v1/shield", "", "409", "is starting"),
            ("GET /v1/blocked", "", "409", "is starting"),
        ] {
            let head = format!("Content-Length: {}\r\n", body.len());
            let answer = raw(path, &[request(line, &head), body.into()].concat());
            let first = answer.lines().next().unwrap_or_default();
            assert!(first.contains(status) && answer.contains(words), "{line} {body}: {answer}");
        }
        let file = r#"{"file":"/b.toml"}"#;
        let head = format!("Content-Length: {}\r\n", file.len());
        let answer = raw(path, &[request("POST /v1/reload", &head), file.into()].concat());
        assert!(answer.contains(r#"Some(\"/b.toml\")"#), "{answer}");
        let refused =
            http::order::<Changes>(path, "/v1/reload", &Reload::default()).expect_err("refused");
        let http::Failure::Failed(error) = refused else { panic!("{refused:?}") };
        assert_eq!((error.kind, *error.remedy), (Kind::Configuration, "mend it".into()));
    })
    .await;
}
