//! The open door: an address of the network, or a socket in the file system.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::config::Listen;

/// Bytes to a client and back.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

/// Where a server can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// On the network.
    Tcp(SocketAddr),
    /// In the file system.
    Unix(PathBuf),
}

impl Address {
    /// Whether other machines can reach it.
    pub fn is_public(&self) -> bool {
        match self {
            Address::Tcp(address) => !address.ip().is_loopback(),
            Address::Unix(_) => false,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Takes connections.
pub enum Listener {
    Tcp(TcpListener),
    /// The file goes first: while the socket is open, no other file has its inode.
    Unix(RemoveFile, UnixListener),
}

/// Removes the socket's file when the server ends.
pub struct RemoveFile {
    path: PathBuf,
    /// Device and inode of the file that we made.
    made: (u64, u64),
}

impl RemoveFile {
    /// The file of a socket that was just opened.
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            made: identity(path)?,
        })
    }
}

impl Drop for RemoveFile {
    fn drop(&mut self) {
        // Somebody may have removed it already, and put a file of their own there.
        if identity(&self.path).is_ok_and(|found| found == self.made) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What tells a file from any other, whatever it is called.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

impl Listener {
    /// Opens the door.
    ///
    /// # Errors
    /// The system does not give the address.
    pub async fn open(listen: &Listen) -> io::Result<Self> {
        match listen {
            Listen::Tcp { host, port } => {
                let listener = TcpListener::bind((host.as_str(), *port)).await?;
                Ok(Listener::Tcp(listener))
            }
            Listen::Unix(path) => {
                let listener = bind(path).await?;
                Ok(Listener::Unix(RemoveFile::of(path)?, listener))
            }
        }
    }

    /// Where it can be reached.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Listener::Unix(file, _) => Ok(Address::Unix(file.path.clone())),
        }
    }

    /// Waits for a client.
    ///
    /// # Errors
    /// The client is gone already, or the system has no room for it.
    pub async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // A token is a small packet that must not wait for the next one.
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Listener::Unix(_, listener) => {
                let (stream, _) = listener.accept().await?;
                Ok(Box::new(stream))
            }
        }
    }
}

/// A server that was killed leaves its file behind, to which nobody listens any more. No other file
/// is ours to remove: to connect to one is refused just the same.
async fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                let message = "a file that is no socket has this name and is left as it is";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
            }
            match UnixStream::connect(path).await {
                Err(gone) if gone.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                    UnixListener::bind(path)
                }
                _ => Err(error),
            }
        }
        bound => bound,
    }
}
