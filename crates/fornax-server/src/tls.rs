//! Encrypted connections.
//!
//! Owns how a certificate and a key become what accepts connections, and which cryptography that
//! uses: graviola, which is Rust and proven assembly and needs no C compiler, so that Fornax builds
//! for any of its platforms on any of them.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::Tls;

/// Accepts connections with this certificate and key.
///
/// # Errors
/// A file that cannot be read or holds something else, a key of another certificate, a processor
/// without the instructions.
pub fn acceptor(tls: &Tls) -> Result<TlsAcceptor, String> {
    check_processor()?;
    let provider = Arc::new(rustls_graviola::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| format!("TLS cannot be set up: {error}"))?;
    let (certificates, key) = (certificates(&tls.cert)?, key(&tls.key)?);
    let config = config.with_no_client_auth();
    let config = config.with_single_cert(certificates, key).map_err(|error| {
        let (cert, key) = (tls.cert.display(), tls.key.display());
        format!("{cert} and {key} do not go together: {error}")
    });
    let mut config = config?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(format!("{}: the file holds no certificate", path.display())),
        Err(error) => Err(format!(
            "{}: no certificate in PEM form: {error}",
            path.display()
        )),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let text = read(path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let path = path.display();
        let is_encrypted = text.windows(9).any(|word| word == b"ENCRYPTED");
        match is_encrypted {
            true => format!(
                "{path}: the private key is encrypted, and nobody is there to be asked for its password; store it without (openssl pkey -in KEY -out PLAIN)"
            ),
            false => format!("{path}: no private key in PEM form: {error}"),
        }
    })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: it cannot be read: {error}", path.display()))
}

/// The cryptography has no other way to compute.
fn check_processor() -> Result<(), String> {
    #[cfg(target_arch = "x86_64")]
    if !(is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("adx")
        && is_x86_feature_detected!("avx2"))
    {
        return Err(
            "TLS needs a processor with AES-NI, PCLMULQDQ, BMI1, ADX and AVX2, and this one lacks some; put a proxy in front that encrypts"
                .to_owned(),
        );
    }
    Ok(())
}
