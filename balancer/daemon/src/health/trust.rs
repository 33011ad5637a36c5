//! Which certificates TLS checks take: authorities read from files, once for all checks, and again
//! when a file changes.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use ringway_config::TlsCheck;
use tokio::time::timeout;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};

/// A look at a file that is known already may take this long; its previous contents hold meanwhile.
const PATIENCE: Duration = Duration::from_millis(250);

/// Where distributions keep the authorities of the machine: Debian, Fedora, SUSE.
const BUNDLES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// Which authorities a check takes. `None`: nothing is verified; `Some(None)`: those of the
/// machine.
type Key = Option<Option<PathBuf>>;

fn key(check: &TlsCheck) -> Key {
    check.verify.then(|| check.ca_file.as_ref().map(|file| (**file).clone()))
}

/// What has been read. Files are looked at on threads that may wait, one look at a time.
#[derive(Debug, Default)]
pub(super) struct Trust {
    known: Arc<Mutex<HashMap<Key, Known>>>,
    /// Held by a look, also by one that hangs.
    looking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct Known {
    /// When the file was changed, and its size.
    version: Option<(SystemTime, u64)>,
    config: Arc<ClientConfig>,
    /// Why the file cannot be read any more.
    lost: Option<String>,
}

fn lock(known: &Mutex<HashMap<Key, Known>>) -> MutexGuard<'_, HashMap<Key, Known>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Trust {
    /// How to speak TLS for this check. What is known holds where looking for changes takes long.
    ///
    /// # Errors
    /// The file cannot be read or has no certificate: which, why, and what to do.
    pub async fn config(&self, check: &TlsCheck) -> Result<Arc<ClientConfig>, String> {
        let known = lock(&self.known).get(&key(check)).map(|known| known.config.clone());
        let look = async {
            let looking = self.looking.clone().lock_owned().await;
            let (known, check) = (self.known.clone(), check.clone());
            let read = tokio::task::spawn_blocking(move || {
                let _looking = looking;
                read(&known, &check)
            });
            read.await.unwrap_or_else(|error| Err(format!("authorities not read: {error}")))
        };
        match known {
            None => look.await,
            Some(known) => timeout(PATIENCE, look).await.unwrap_or(Ok(known)),
        }
    }

    /// Why files that have been read before cannot be read any more, in order. What they said then
    /// holds.
    pub fn lost(&self) -> Vec<String> {
        let known = lock(&self.known);
        let mut lost: Vec<String> = known.values().filter_map(|known| known.lost.clone()).collect();
        lost.sort();
        lost
    }

    /// Forgets files that none of these checks takes.
    pub fn keep<'c>(&self, checks: impl Iterator<Item = &'c TlsCheck>) {
        let used: HashSet<Key> = checks.map(key).collect();
        lock(&self.known).retain(|key, _| used.contains(key));
    }
}

/// Looks at the file, and reads it where it has changed. May hang, as file systems do.
fn read(all: &Mutex<HashMap<Key, Known>>, check: &TlsCheck) -> Result<Arc<ClientConfig>, String> {
    let key = key(check);
    let file = check.verify.then(|| authorities(check)).transpose()?;
    let metadata = file.as_ref().and_then(|file| fs::metadata(file).ok());
    let version = metadata.and_then(|found| Some((found.modified().ok()?, found.len())));
    if let Some(known) = lock(all).get(&key).filter(|known| known.version == version) {
        return Ok(known.config.clone());
    }
    let config = match &file {
        Some(file) => match (verifying(file), lock(all).get_mut(&key)) {
            // A file that is being replaced must not take the backends down.
            (Err(error), Some(known)) => {
                if known.version.take().is_some() {
                    tracing::warn!("{error}; its previous contents hold");
                }
                known.lost = Some(error);
                return Ok(known.config.clone());
            }
            (config, _) => config?,
        },
        None => believing(),
    };
    let config = Arc::new(config.map_err(|error| format!("TLS cannot be used: {error}"))?);
    lock(all).insert(key, Known { version, config: config.clone(), lost: None });
    Ok(config)
}

/// The file of the authorities that this check takes.
///
/// # Errors
/// None is named, and the machine has none.
pub(super) fn authorities(check: &TlsCheck) -> Result<PathBuf, String> {
    if let Some(file) = &check.ca_file {
        return Ok((**file).clone());
    }
    let found = BUNDLES.iter().map(Path::new).find(|file| file.exists());
    found.map(Path::to_owned).ok_or_else(|| {
        format!(
            "this machine has no list of certificate authorities ({}): install the package \
             ca-certificates, name a ca_file, or write tls_verify = false",
            BUNDLES[0]
        )
    })
}

/// The authorities in a PEM file.
///
/// # Errors
/// It cannot be read or has no certificate.
pub(super) fn roots(file: &Path) -> Result<RootCertStore, String> {
    let what = |error: &dyn std::fmt::Display, remedy: &str| {
        format!("authorities {} cannot be used: {error}; {remedy}", file.display())
    };
    let pem = fs::read(file)
        .map_err(|e| what(&e, "give the path of a PEM file that the daemon's user may read"))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let certificates = certificates.map_err(|e| what(&e, "mend it, or write another ca_file"))?;
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(certificates) {
        (0, 0) => {
            Err(what(&"it has no certificate", "PEM is expected: -----BEGIN CERTIFICATE-----"))
        }
        (0, _) => Err(what(&"no certificate in it can be parsed", "mend it")),
        _ => Ok(roots),
    }
}

type Built = Result<ClientConfig, TlsError>;

fn verifying(file: &Path) -> Result<Built, String> {
    let roots = Arc::new(roots(file)?);
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(|error| format!("authorities {} cannot be used: {error}", file.display()))?;
    Ok(with(provider, verifier))
}

fn believing() -> Built {
    let provider = Arc::new(ring::default_provider());
    let schemes = provider.signature_verification_algorithms.supported_schemes();
    with(provider, Arc::new(Anybody { schemes }))
}

fn with(provider: Arc<CryptoProvider>, verifier: Arc<dyn ServerCertVerifier>) -> Built {
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    // Each check looks at the certificate anew.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// `tls_verify = false`
#[derive(Debug)]
struct Anybody {
    schemes: Vec<SignatureScheme>,
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}
