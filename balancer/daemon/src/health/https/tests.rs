//! Against servers on loopback, with certificates made for each test.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use ringway_config::Statuses;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::*;

const SOON: Duration = Duration::from_secs(10);

/// An authority in a file.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: tempfile::TempDir,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("ca.pem"), issuer.pem()).expect("written");
        Authority { issuer, directory }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// A server with a certificate for these names that answers every GET.
    async fn server(&self, names: &[&str], adapt: impl FnOnce(&mut CertificateParams)) -> Peer {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names");
        adapt(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        serve(vec![certificate.der().clone()], key).await
    }

    /// A server that shows the authority's own certificate.
    async fn own(&self) -> Peer {
        let key = KeyPair::from_pem(&self.issuer.key().serialize_pem()).expect("a key");
        serve(vec![self.issuer.der().clone()], key).await
    }
}

async fn serve(
    chain: Vec<tokio_rustls::rustls::pki_types::CertificateDer<'static>>,
    key: KeyPair,
) -> Peer {
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            let _ = stream.shutdown().await;
        }
    });
    Peer::new(address, None)
}

fn tls(ca_file: Option<PathBuf>, sni: &str) -> TlsCheck {
    let sni = (!sni.is_empty()).then(|| sni.to_owned());
    TlsCheck { verify: true, ca_file: ca_file.map(Into::into), sni }
}

fn unverified() -> TlsCheck {
    TlsCheck { verify: false, ca_file: None, sni: None }
}

fn get_as(host: Option<&str>) -> HttpCheck {
    let host = host.map(ToOwned::to_owned);
    HttpCheck { path: "/".into(), host, expect: Statuses::default() }
}

async fn ask(peer: &Peer, tls: &TlsCheck) -> Result<(), String> {
    let outcome = https(peer, &get_as(None), tls, &Trust::default(), SOON).await;
    outcome.map_err(|failure| failure.to_string())
}

#[tokio::test]
async fn a_certificate_for_the_name_passes() {
    let ca = Authority::new("ours");
    let named = ca.server(&["web.example", "*.other.example"], |_| {}).await;
    ask(&named, &tls(Some(ca.file()), "web.example")).await.expect("by sni");
    ask(&named, &tls(Some(ca.file()), "www.other.example")).await.expect("by a wildcard");
    let trust = Trust::default();
    let by_host = get_as(Some("web.example:443"));
    let plain = tls(Some(ca.file()), "");
    https(&named, &by_host, &plain, &trust, SOON).await.expect("by the host header");
    let numbered = ca.server(&["127.0.0.1"], |_| {}).await;
    ask(&numbered, &tls(Some(ca.file()), "")).await.expect("by address");
}

/// Whoever names a server's own certificate as the authority means just that one.
#[tokio::test]
async fn a_certificate_that_vouches_for_itself_passes_when_it_is_named() {
    let key = KeyPair::generate().expect("a key");
    let names = vec!["web.example".to_owned()];
    let own = CertificateParams::new(names).expect("names").self_signed(&key).expect("signed");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("own.pem");
    fs::write(&file, own.pem()).expect("written");
    let server = serve(vec![own.der().clone()], key).await;
    ask(&server, &tls(Some(file), "web.example")).await.expect("passes");
    let other = Authority::new("another");
    assert!(ask(&server, &tls(Some(other.file()), "web.example")).await.is_err());
}

#[tokio::test]
async fn what_is_wrong_with_a_certificate_is_said() {
    let (ca, other) = (Authority::new("ours"), Authority::new("another"));
    let file = ca.file();
    let of = |sni: &str| tls(Some(file.clone()), sni);
    let good = ca.server(&["other.example"], |_| {}).await;
    let nameless = ca.server(&[], |_| {}).await;
    let expired = |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    };
    let expired = ca.server(&["web.example"], expired).await;
    let early = |params: &mut CertificateParams| params.not_before = date_time_ymd(2900, 1, 1);
    let early = ca.server(&["web.example"], early).await;
    let own = ca.own().await;
    let strange = tls(Some(other.file()), "other.example");
    let unknown = format!(
        "certificate is signed by none of the authorities in {}: name its own with ca_file, or \
         tls_verify = false",
        other.file().display()
    );
    for (peer, check, want) in [
        (
            &good,
            of("web.example"),
            "certificate is for other.example, not web.example: set sni, or tls_verify = false",
        ),
        (
            &good,
            of(""),
            "certificate is for other.example, not 127.0.0.1: set sni, or tls_verify = false",
        ),
        (
            &nameless,
            of("web.example"),
            "certificate names no host (subjectAltName), so it is not for web.example: renew it \
             with one, or tls_verify = false",
        ),
        (&expired, of("web.example"), "certificate expired at 2021-01-01T00:00:00Z: renew it"),
        (
            &early,
            of("web.example"),
            "certificate is valid from 2900-01-01T00:00:00Z only: see this machine's clock",
        ),
        (&good, strange, unknown.as_str()),
        (
            &own,
            of("web.example"),
            "certificate is an authority's own (CA:TRUE), which no server may show: sign another \
             with it, or tls_verify = false",
        ),
    ] {
        assert_eq!(ask(peer, &check).await.expect_err(want), want);
        ask(peer, &unverified()).await.expect("nothing is asked of the certificate");
    }
}

#[tokio::test]
async fn servers_that_do_not_speak_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let peer = Peer::new(listener.local_addr().expect("address"), None);
    let port = peer.address.port();
    let answers: [&[u8]; 2] = [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""];
    tokio::spawn(async move {
        for answer in answers {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(answer).await;
        }
        // The third is left waiting.
        std::future::pending::<()>().await;
    });
    let failure = ask(&peer, &unverified()).await.expect_err("plain HTTP");
    assert_eq!(failure, format!("port {port} does not speak TLS"));
    let failure = ask(&peer, &unverified()).await.expect_err("closed");
    assert_eq!(failure, format!("port {port} closes the connection in the TLS handshake"));
    let limit = Duration::from_millis(50);
    let silent = https(&peer, &get_as(None), &unverified(), &Trust::default(), limit).await;
    assert!(matches!(silent, Err(Failure::Timeout { .. })));
}

/// A look at a file that is known is not waited for where it takes long: 250 ms.
async fn soon(mut holds: impl AsyncFnMut() -> bool) {
    let began = std::time::Instant::now();
    while !holds().await {
        assert!(began.elapsed() < SOON, "not within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_file_of_authorities_is_read_again_when_it_changes() {
    let (ca, other) = (Authority::new("ours"), Authority::new("another"));
    let server = ca.server(&["web.example"], |_| {}).await;
    let file = other.directory.path().join("own.pem");
    fs::copy(other.file(), &file).expect("copied");
    let (check, trust) = (tls(Some(file.clone()), "web.example"), Trust::default());
    let http = get_as(None);
    let asked = || https(&server, &http, &check, &trust, SOON);
    assert!(asked().await.is_err());
    // Of another length, whatever the clock's resolution.
    let both = format!("{}\n# and\n{}", other.issuer.pem(), ca.issuer.pem());
    fs::write(&file, both).expect("written");
    soon(async || asked().await.is_ok()).await;
    assert!(trust.lost().is_empty());
    fs::remove_file(&file).expect("removed");
    asked().await.expect("what was read before holds");
    soon(async || asked().await.is_ok() && !trust.lost().is_empty()).await;
    assert!(trust.lost()[0].contains("own.pem cannot be used: No such file"), "{trust:?}");
    fs::copy(ca.file(), &file).expect("put back");
    soon(async || asked().await.is_ok() && trust.lost().is_empty()).await;
    fs::remove_file(&file).expect("removed");
    soon(async || asked().await.is_ok() && !trust.lost().is_empty()).await;
    trust.keep([&check].into_iter());
    assert_eq!(trust.lost().len(), 1);
    trust.keep([].into_iter());
    assert!(trust.lost().is_empty(), "no check takes it any more: {trust:?}");
    let unread = https(&server, &http, &check, &Trust::default(), SOON).await;
    let unread = unread.expect_err("never read").to_string();
    assert!(unread.contains("cannot be used: No such file"), "{unread}");
}

/// A FIFO without a writer, which hangs whoever opens it. The runtime waits for its threads, so it
/// lets go at the end.
struct Fifo(PathBuf);

impl Drop for Fifo {
    fn drop(&mut self) {
        let _ = fs::File::options().read(true).write(true).open(&self.0);
    }
}

#[tokio::test]
async fn a_file_system_that_hangs_holds_up_nobody_who_knows_the_file() {
    let ca = Authority::new("ours");
    let server = ca.server(&["web.example"], |_| {}).await;
    let (known, trust) = (tls(Some(ca.file()), "web.example"), Trust::default());
    https(&server, &get_as(None), &known, &trust, SOON).await.expect("passes");
    let fifo = ca.directory.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("made");
    let hangs = tls(Some(fifo.clone()), "web.example");
    let _fifo = Fifo(fifo);
    let limit = Duration::from_millis(200);
    for _ in 0..3 {
        let failure = https(&server, &get_as(None), &hangs, &trust, limit).await;
        assert!(
            matches!(failure, Err(Failure::NotAsked(_))),
            "no failure of the backend: {failure:?}"
        );
        https(&server, &get_as(None), &known, &trust, SOON).await.expect("it is known");
    }
}
