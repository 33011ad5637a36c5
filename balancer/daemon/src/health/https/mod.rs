//! The GET within TLS, and what is wrong with a certificate in words.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use ringway_api::clock;
use ringway_config::{HttpCheck, TlsCheck};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};
use tokio_rustls::rustls::{CertificateError, Error as TlsError};

use super::failure::Failure;
use super::http::get;
use super::not_asked::Lack;
use super::peer::Peer;
use super::trust::{Trust, authorities};

/// Passes when TLS is agreed on, with a certificate that `tls` takes, and the GET is answered with
/// an expected status, all within `limit`.
pub(super) async fn https(
    peer: &Peer,
    check: &HttpCheck,
    tls: &TlsCheck,
    trust: &Trust,
    limit: Duration,
) -> Result<(), Failure> {
    let late = || Err(format!("they could not be read within {} ms", limit.as_millis()));
    let config = timeout(limit, trust.config(tls)).await.unwrap_or_else(|_| late());
    let config = config.map_err(|why| Failure::not_asked(Lack::Authorities, why))?;
    let name = server_name(peer.address.ip(), check, tls);
    peer.bounded(limit, async {
        let stream = peer.connect().await?;
        let connected = TlsConnector::from(config).connect(name, stream).await;
        let stream = connected.map_err(|cause| not_agreed(peer, tls, cause))?;
        get(stream, peer.address, check).await
    })
    .await
}

/// The name that the certificate must have: `sni`, else the name in `host`, else the address asked.
fn server_name(address: IpAddr, check: &HttpCheck, tls: &TlsCheck) -> ServerName<'static> {
    let host = check.host.as_deref().map(|host| match host.rsplit_once(':') {
        Some((name, _)) if !host.ends_with(']') => name,
        _ => host,
    });
    let host = host.map(|host| host.trim_matches(['[', ']']));
    let names = [tls.sni.as_deref(), host];
    let name = names.into_iter().flatten().find_map(|name| ServerName::try_from(name).ok());
    name.map_or_else(|| ServerName::IpAddress(address.into()), |name| name.to_owned())
}

fn not_agreed(peer: &Peer, tls: &TlsCheck, cause: io::Error) -> Failure {
    let (address, port) = (peer.address, peer.address.port());
    let inner = cause.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    match inner {
        Some(TlsError::InvalidCertificate(error)) => Failure::Tls(in_words(error, tls)),
        Some(TlsError::InvalidMessage(_)) => {
            Failure::Tls(format!("port {port} does not speak TLS"))
        }
        Some(TlsError::AlertReceived(alert)) => {
            Failure::Tls(format!("port {port} refuses the TLS handshake with alert {alert:?}"))
        }
        Some(error) => Failure::Tls(format!("TLS on port {port}: {error}")),
        None if cause.kind() == io::ErrorKind::UnexpectedEof => {
            Failure::Tls(format!("port {port} closes the connection in the TLS handshake"))
        }
        None => Failure::io(address, cause),
    }
}

/// The error of a certificate, and its remedy.
fn in_words(error: &CertificateError, tls: &TlsCheck) -> String {
    let at = |time: &UnixTime| clock::rfc3339(clock::from_unix_s(time.as_secs()));
    let anyway = "or tls_verify = false";
    match error {
        CertificateError::NotValidForNameContext { expected, presented } => {
            let expected = expected.to_str();
            match names(presented) {
                names if names.is_empty() => format!(
                    "certificate names no host (subjectAltName), so it is not for {expected}: \
                     renew it with one, {anyway}"
                ),
                names => {
                    format!("certificate is for {names}, not {expected}: set sni, {anyway}")
                }
            }
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("certificate expired at {}: renew it", at(not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            let from = at(not_before);
            format!("certificate is valid from {from} only: see this machine's clock")
        }
        CertificateError::UnknownIssuer => {
            let file = authorities(tls).map(|file| file.display().to_string()).unwrap_or_default();
            format!(
                "certificate is signed by none of the authorities in {file}: name its own with \
                 ca_file, {anyway}"
            )
        }
        CertificateError::Other(other)
            if other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity) =>
        {
            format!(
                "certificate is an authority's own (CA:TRUE), which no server may show: sign \
                 another with it, {anyway}"
            )
        }
        other => format!("certificate is not valid: {other}"),
    }
}

/// `DnsName("a")` and `IpAddress(1.2.3.4)`, as rustls has them, without their kinds.
fn names(presented: &[String]) -> String {
    let bare = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.unwrap_or(name).trim_matches('"').to_owned()
    };
    let shown: Vec<String> = presented.iter().take(3).map(bare).collect();
    let more = if presented.len() > shown.len() { ", ..." } else { "" };
    shown.join(", ") + more
}

#[cfg(test)]
mod tests;
