//! A service of tarpc, and a client.

use std::io;
use std::time::Duration;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use strait::Peer;
use strait_tokio::{Listener, Reactor, Stream};
use tarpc::context::Context;
use tarpc::serde_transport::Transport;
use tarpc::server::{BaseChannel, Channel};
use tarpc::{ClientMessage, Response, client};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio_serde::formats::Bincode;

/// The greatest number of requests of one client that are served at the same time.
const AT_A_TIME: usize = 256;

/// How long a client waits for a connection.
const LIMIT: Duration = Duration::from_secs(60);

/// A reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// The bytes of the request.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
    /// The process id of the client, as reported by the kernel; 0 if not known.
    pub client: u32,
    /// The processor time used by the service, in nanoseconds.
    pub processor_time: u64,
}

/// Bytes, which serde copies at once.
pub type Bytes = serde_bytes::ByteBuf;

/// The service.
#[tarpc::service]
pub trait Echo {
    /// Returns the bytes.
    async fn echo(body: Bytes) -> Reply;
}

/// The service for one client, independent of the transport.
#[derive(Clone)]
struct Echoing {
    client: Option<Peer>,
}

impl Echo for Echoing {
    async fn echo(self, _: Context, body: Bytes) -> Reply {
        let client = self.client.and_then(|peer| peer.pid).unwrap_or(0);
        Reply { body: body.into_vec(), client, processor_time: crate::processor_time() }
    }
}

/// Serves clients that connect over Strait. The service of a client has the client's identity, as reported by the
/// kernel.
///
/// # Errors
/// The errors of [`Listener::accept_stream`] that do not pass.
pub async fn serve(listener: Listener, reactor: &Reactor) -> io::Result<()> {
    loop {
        let stream = match listener.accept_stream(reactor).await {
            Ok(stream) => stream,
            Err(error) => {
                // A lack of descriptors or memory passes; another error does not.
                crate::pause_after(error).await?;
                continue;
            }
        };
        let client = stream.peer();
        tokio::spawn(serve_connection(stream, client));
    }
}

/// Serves clients of a Unix socket.
///
/// # Errors
/// The errors of [`UnixListener::accept`].
pub async fn serve_socket(listener: UnixListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve_connection(stream, None));
    }
}

/// Serves the requests of one connection, over any transport.
async fn serve_connection<S>(stream: S, client: Option<Peer>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let transport: Transport<_, ClientMessage<EchoRequest>, Response<EchoResponse>, _> =
        (stream, Bincode::default()).into();
    // A client that sends requests without end gets errors for the further ones.
    let requests = BaseChannel::with_defaults(transport).max_concurrent_requests(AT_A_TIME);
    let requests = requests.execute(Echoing { client }.serve());
    requests
        .for_each(|request| async {
            tokio::spawn(request);
        })
        .await;
}

/// Connects to the service over Strait.
///
/// # Errors
/// The errors of [`Stream::connect`].
pub async fn connect(name: &str, reactor: &Reactor) -> io::Result<EchoClient> {
    Ok(client_over(Stream::connect(name, reactor, LIMIT).await?))
}

/// Connects to the service over a Unix socket.
///
/// # Errors
/// The errors of [`UnixStream::connect`].
pub async fn connect_socket(path: &str) -> io::Result<EchoClient> {
    Ok(client_over(UnixStream::connect(path).await?))
}

fn client_over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> EchoClient {
    let transport: Transport<_, Response<EchoResponse>, ClientMessage<EchoRequest>, _> =
        (stream, Bincode::default()).into();
    EchoClient::new(client::Config::default(), transport).spawn()
}
