//! How clients come in: too slowly, encrypted, through a socket of the file system.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::{BUILT_IN, chat, load, receive, send, start, start_on};
use fornax_server::{Config, Ended, Listen, Server, Tls};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const SHORT: Duration = Duration::from_millis(50);

/// What the server says until it closes the connection.
fn rest(mut stream: impl Read) -> String {
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    told
}

#[test]
fn who_does_not_finish_its_head_is_not_waited_for() {
    let server = start(load(BUILT_IN, 1), |config| config.timeouts.head = SHORT);
    let mut client = TcpStream::connect(server.address).unwrap();
    client.write_all(b"GET /health HTTP/1.1\r\nHost:").unwrap();
    assert_eq!(rest(client), "");
    assert_eq!(server.stop(), Ended::Drained);
}

#[test]
fn who_asks_nothing_more_is_let_go() {
    let server = start(load(BUILT_IN, 1), |config| config.timeouts.idle = SHORT);
    let mut client = TcpStream::connect(server.address).unwrap();
    for _ in 0..2 {
        client
            .write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut told = [0; 12];
        client.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"HTTP/1.1 200");
        let mut left = [0; 1000];
        let _ = client.read(&mut left).unwrap();
    }
    assert_eq!(rest(client), "");
}

#[test]
fn who_does_not_finish_its_body_is_told_so() {
    let server = start(load(BUILT_IN, 1), |config| config.timeouts.body = SHORT);
    let mut client = TcpStream::connect(server.address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
    client.write_all(head.as_bytes()).unwrap();
    let reply = receive(client);
    assert_eq!(reply.status, 408, "{reply:?}");
    assert!(reply.error().0.contains("--body-timeout"), "{reply:?}");
}

fn socket_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn ask(path: &Path, method: &str, address: &str, body: &str) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    let length = body.len();
    let request = format!(
        "{method} {address} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

#[test]
fn who_takes_nothing_of_its_answer_is_given_up() {
    let path = socket_path("stall.sock");
    let server = start_on(load(BUILT_IN, 1), Listen::Unix(path.clone()), |config| {
        config.timeouts.stall = SHORT;
    });
    // With so much beside each token the answer is far larger than what a socket holds.
    let body = json!({
        "prompt": "Once upon a time", "logprobs": 20, "max_tokens": 1900, "ignore_eos": true,
        "stream": true,
    });
    let client = ask(&path, "POST", "/v1/completions", &body.to_string());
    let aborted =
        "fornax:request_failure_total{model_name=\"fornax-mini\",finished_reason=\"abort\"} 1";
    // The step that runs just then may still have its pages.
    let free = "vllm:kv_cache_usage_perc{model_name=\"fornax-mini\"} 0\n";
    let mut told = String::new();
    for _ in 0..1000 {
        told = rest(ask(&path, "GET", "/metrics", ""));
        if told.contains(aborted) && told.contains(free) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(told.contains(aborted) && told.contains(free), "{told}");
    drop(client);
    server.stop();
}

#[test]
fn a_socket_of_the_file_system_is_a_door_too() {
    let path = socket_path("door.sock");
    // Left behind by a server that was killed.
    drop(UnixListener::bind(&path));
    assert!(path.exists());
    let server = start_on(load(BUILT_IN, 1), Listen::Unix(path.clone()), |_| {});
    assert!(rest(ask(&path, "GET", "/health", "")).starts_with("HTTP/1.1 200"));
    let body = chat("What is 12 + 30?", json!({})).to_string();
    assert!(rest(ask(&path, "POST", "/v1/chat/completions", &body)).contains("42"));
    // A door that is in use is not taken away from who has it.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let taken = Listen::Unix(path.clone());
    let second = Server::bind(load(BUILT_IN, 1), Config::new("second"), &taken);
    let error = runtime.block_on(second).err().unwrap().to_string();
    assert!(
        error.contains("door.sock") && error.contains("--socket"),
        "{error}"
    );
    assert_eq!(server.stop(), Ended::Drained);
    assert!(!path.exists());
}

/// Why no door opens at this path.
fn refused(path: &Path) -> String {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listen = Listen::Unix(path.to_owned());
    let server = Server::bind(load(BUILT_IN, 1), Config::new("any"), &listen);
    runtime.block_on(server).err().unwrap().to_string()
}

#[test]
fn no_file_but_a_socket_left_behind_makes_way_for_a_door() {
    let (file, link) = (socket_path("precious.txt"), socket_path("link.sock"));
    let left = socket_path("left.sock");
    for path in [&file, &link, &left] {
        let _ = std::fs::remove_file(path);
    }
    std::fs::write(&file, "precious").unwrap();
    drop(UnixListener::bind(&left));
    std::os::unix::fs::symlink(&left, &link).unwrap();
    for path in [&file, &link] {
        let error = refused(path);
        let name = path.to_str().unwrap();
        assert!(
            error.contains(name) && error.contains("no socket") && error.contains("--socket"),
            "{error}"
        );
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    assert!(link.is_symlink() && left.exists());
}

#[test]
fn a_server_that_ends_removes_its_own_socket_only() {
    let path = socket_path("replaced.sock");
    let _ = std::fs::remove_file(&path);
    let server = start_on(load(BUILT_IN, 1), Listen::Unix(path.clone()), |_| {});
    std::fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    assert_eq!(server.stop(), Ended::Drained);
    assert!(path.exists(), "another's socket was removed");
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/tls")
        .join(name)
}

/// What a client of TLS is told that trusts our authority, or any other.
async fn ask_encrypted(address: std::net::SocketAddr, trusts: bool) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    if trusts {
        let authority = CertificateDer::from_pem_file(fixture("authority.pem")).unwrap();
        roots.add(authority).unwrap();
    }
    let provider = Arc::new(rustls_graviola::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, stream).await?;
    let request = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut told = String::new();
    stream.read_to_string(&mut told).await?;
    Ok(told)
}

#[test]
fn connections_are_encrypted_where_a_certificate_is_given() {
    let server = start(load(BUILT_IN, 1), |config| {
        config.timeouts.head = Duration::from_secs(5);
        config.tls = Some(Tls {
            cert: fixture("cert.pem"),
            key: fixture("key.pem"),
        });
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask = |trusts| runtime.block_on(ask_encrypted(server.address, trusts));
    let told = ask(true).unwrap();
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    assert!(ask(false).is_err(), "an unknown authority was trusted");
    // Who speaks in the clear is not answered in the clear.
    let mut told = Vec::new();
    let _ = send(server.address, "GET", "/health", "", "").read_to_end(&mut told);
    assert!(!told.starts_with(b"HTTP"), "{told:?}");
    assert_eq!(server.stop(), Ended::Drained);
}

#[test]
fn a_certificate_that_cannot_be_used_is_named() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let encrypted = Path::new(env!("CARGO_TARGET_TMPDIR")).join("encrypted.pem");
    let text = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n";
    std::fs::write(&encrypted, text).unwrap();
    let encrypted = encrypted.to_str().unwrap();
    let refused = |cert: &str, key: &str| {
        let mut config = Config::new("any");
        // An absolute path stays as it is.
        config.tls = Some(Tls {
            cert: fixture(cert),
            key: fixture(key),
        });
        let listen = Listen::Tcp {
            host: "127.0.0.1".to_owned(),
            port: 0,
        };
        let server = Server::bind(load(BUILT_IN, 1), config, &listen);
        runtime.block_on(server).err().unwrap().to_string()
    };
    for (cert, key, named) in [
        ("missing.pem", "key.pem", "missing.pem: it cannot be read"),
        ("cert.pem", encrypted, "is encrypted"),
        ("key.pem", "key.pem", "no certificate"),
        ("cert.pem", "cert.pem", "no private key"),
        ("authority.pem", "key.pem", "do not go together"),
    ] {
        let error = refused(cert, key);
        assert!(error.contains(named), "{cert} {key}: {error}");
    }
}
