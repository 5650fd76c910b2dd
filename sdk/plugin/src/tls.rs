//! What the shared TLS group comes to for rustls (feature `tls`): one reading of certificates and
//! keys, one crypto provider, the same errors in every connector.
//!
//! The provider is named in each configuration instead of installed for the process: the plugins of a
//! host share the process, and only the first of them could install one.

use crate::Failure;
use crate::groups::Tls;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use rustls;

impl Tls {
    /// Faults of a client's settings that the schema cannot express, each a sentence that names the
    /// field.
    #[must_use]
    pub fn client_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.cert_file.is_some() != self.key_file.is_some() {
            faults.push("`tls`: `cert_file` and `key_file` belong together".to_owned());
        }
        if let Some(name) = &self.server_name
            && ServerName::try_from(name.as_str()).is_err()
        {
            faults.push(format!(
                "`tls.server_name`: `{name}` is neither a host name nor an address"
            ));
        }
        faults
    }

    /// A client's side: trusts `ca_file`, or the system's authorities, and shows the certificate where
    /// there is one. Reads files; call it once per connection.
    ///
    /// # Errors
    /// `Config`, with the file and what is wrong with it.
    pub async fn client(&self) -> Result<Arc<ClientConfig>, Failure> {
        let provider = Arc::new(ring::default_provider());
        let roots = match &self.ca_file {
            Some(path) => authorities(path).await?,
            None => system_authorities().await?,
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(fault)?
            .with_root_certificates(roots);
        let config = match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => builder
                .with_client_auth_cert(certificates(cert).await?, private_key(key).await?)
                .map_err(|error| fault(format!("{}: {error}", cert.display())))?,
            _ => builder.with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }

    /// The name a client expects in the server's certificate: `server_name`, else the host it
    /// connects to.
    ///
    /// # Errors
    /// `Config`: it is neither a host name nor an address.
    pub fn expected_name(&self, host: &str) -> Result<ServerName<'static>, Failure> {
        let name = self.server_name.as_deref().unwrap_or(host);
        ServerName::try_from(name.to_owned())
            .map_err(|_| fault(format!("`{name}` is neither a host name nor an address")))
    }

    /// A server's side: `cert_file` and `key_file` are its own; with `ca_file`, clients must show a
    /// certificate of one of its authorities.
    ///
    /// # Errors
    /// `Config`, with the file and what is wrong with it.
    pub async fn server(&self) -> Result<Arc<ServerConfig>, Failure> {
        let (Some(cert), Some(key)) = (&self.cert_file, &self.key_file) else {
            return Err(fault("a server needs `cert_file` and `key_file`"));
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(fault)?;
        let builder = match &self.ca_file {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let roots = Arc::new(authorities(ca).await?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                builder.with_client_cert_verifier(verifier.build().map_err(fault)?)
            }
        };
        builder
            .with_single_cert(certificates(cert).await?, private_key(key).await?)
            .map(Arc::new)
            .map_err(|error| fault(format!("{}: {error}", cert.display())))
    }
}

/// What TLS says of a handshake or stream that it ended: the two sides do not agree, which needs a person.
/// `None`: TLS is not what failed, as when the stream broke.
#[must_use]
pub fn disagreement(error: &io::Error) -> Option<String> {
    let tls = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match tls {
        rustls::Error::InvalidMessage(_) => {
            format!("what listens there does not speak TLS ({tls})")
        }
        rustls::Error::AlertReceived(_) => format!("the other side refuses us ({tls})"),
        _ => tls.to_string(),
    })
}

async fn authorities(path: &Path) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path).await? {
        roots
            .add(authority)
            .map_err(|error| fault(format!("{}: {error}", path.display())))?;
    }
    Ok(roots)
}

async fn system_authorities() -> Result<RootCertStore, Failure> {
    let found = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs)
        .await
        .map_err(fault)?;
    let mut roots = RootCertStore::empty();
    // Old authorities that this library cannot read are no reason to trust none at all.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})"));
        return Err(fault(format!(
            "this system has no authorities to trust{}: name a `ca_file`",
            why.unwrap_or_default()
        )));
    }
    Ok(roots)
}

async fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let pem = read(path).await?;
    match CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(fault(format!(
            "{}: expected certificates in PEM",
            path.display()
        ))),
    }
}

async fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Failure> {
    let pem = read(path).await?;
    PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|error| fault(format!("{}: no private key in it: {error}", path.display())))
}

async fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    tokio::fs::read(path)
        .await
        .map_err(|error| fault(format!("{}: {error}", path.display())))
}

fn fault(what: impl ToString) -> Failure {
    Failure::config(("tls", what.to_string()))
}
