//! A gRPC service of tonic, and a client.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::Uri;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use strait::Peer;
use strait_tokio::{ConnectInfo, Listener, Reactor, Stream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Error, Server};
use tower::{Service, service_fn};

use generated::echo_client::EchoClient;
use generated::echo_server::{Echo, EchoServer};

/// The code written by the build script.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "written by tonic-build")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/services.Echo.rs"));
}

/// A client of the service.
pub type Client = EchoClient<Channel>;

/// How long a client waits for a connection.
const LIMIT: Duration = Duration::from_secs(60);

/// A request: bytes to echo.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// The bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
}

/// A reply.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Reply {
    /// The bytes of the request.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// The process id of the client, as reported by the kernel; 0 if not known.
    #[prost(uint32, tag = "2")]
    pub client: u32,
    /// The processor time used by the service, in nanoseconds.
    #[prost(uint64, tag = "3")]
    pub processor_time: u64,
}

/// The service, independent of the transport.
struct Echoing;

#[tonic::async_trait]
impl Echo for Echoing {
    async fn echo(&self, request: tonic::Request<Request>) -> Result<tonic::Response<Reply>, tonic::Status> {
        let client = client_of(&request).and_then(|peer| peer.pid).unwrap_or(0);
        let body = request.into_inner().body;
        Ok(tonic::Response::new(Reply { body, client, processor_time: crate::processor_time() }))
    }
}

/// Returns the identity of the client, an extension of the request: tonic's server puts a [`ConnectInfo`] there, and
/// [`serve`] a [`Peer`].
fn client_of<T>(request: &tonic::Request<T>) -> Option<Peer> {
    let extensions = request.extensions();
    extensions.get::<Peer>().copied().or_else(|| extensions.get::<ConnectInfo>()?.peer)
}

/// Serves clients that connect over Strait, by the server of tonic. Ends after an error of the listener that does not
/// pass.
///
/// # Errors
/// The errors of tonic's server.
pub async fn serve_by_tonic(listener: Listener, reactor: &Reactor) -> Result<(), Error> {
    let incoming = stream::unfold((), |()| async {
        loop {
            match listener.accept_stream(reactor).await {
                Ok(stream) => return Some((Ok::<_, io::Error>(stream), ())),
                // tonic would call `accept_stream` again at once. A lack of descriptors or memory passes.
                Err(error) => crate::pause_after(error).await.ok()?,
            }
        }
    });
    Server::builder().add_service(EchoServer::new(Echoing)).serve_with_incoming(incoming).await
}

/// Serves clients that connect over Strait, by hyper. Each request has the client's identity, as reported by the
/// kernel, as an extension.
///
/// # Errors
/// The errors of [`Listener::accept_stream`] that do not pass.
pub async fn serve(listener: Listener, reactor: &Reactor) -> io::Result<()> {
    let routes = Routes::new(EchoServer::new(Echoing)).prepare();
    loop {
        let stream = match listener.accept_stream(reactor).await {
            Ok(stream) => stream,
            Err(error) => {
                // A lack of descriptors or memory passes; another error does not.
                crate::pause_after(error).await?;
                continue;
            }
        };
        let peer = stream.peer();
        tokio::spawn(serve_connection(stream, peer, routes.clone()));
    }
}

/// Serves clients of a Unix socket.
///
/// # Errors
/// The errors of [`UnixListener::accept`].
pub async fn serve_socket(listener: UnixListener) -> io::Result<()> {
    let routes = Routes::new(EchoServer::new(Echoing)).prepare();
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve_connection(stream, None, routes.clone()));
    }
}

/// Serves the requests of one connection, over any transport.
async fn serve_connection<S>(stream: S, peer: Option<Peer>, routes: Routes)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        routes.clone().call(request)
    });
    let service = TowerToHyperService::new(service);
    // A client may close its connection at any time.
    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

/// Connects to the service over Strait.
///
/// # Errors
/// The errors of [`Stream::connect`] and of tonic.
pub async fn connect(name: &str, reactor: Arc<Reactor>) -> Result<Client, Error> {
    let name = name.to_owned();
    let connector = service_fn(move |_: Uri| {
        let (name, reactor) = (name.clone(), reactor.clone());
        async move { Stream::connect(&name, &reactor, LIMIT).await.map(TokioIo::new) }
    });
    Ok(EchoClient::new(Endpoint::from_static("http://strait").connect_with_connector(connector).await?))
}

/// Connects to the service over a Unix socket.
///
/// # Errors
/// The errors of [`UnixStream::connect`] and of tonic.
pub async fn connect_socket(path: &str) -> Result<Client, Error> {
    let path = path.to_owned();
    let connector = service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    Ok(EchoClient::new(Endpoint::from_static("http://socket").connect_with_connector(connector).await?))
}
