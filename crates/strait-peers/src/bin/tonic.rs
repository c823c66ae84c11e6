//! gRPC over a Unix socket: tonic.

use hyper_util::rt::TokioIo;
use prost::Message;
use strait_peers::{Client, Meeting, Peer, Result, Service};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, mpsc};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Request, Response, Status, Streaming};

/// A message of bytes.
#[derive(Clone, PartialEq, Message)]
pub struct Bytes {
    #[prost(bytes = "vec", tag = "1")]
    bytes: Vec<u8>,
}

mod generated {
    #![allow(clippy::all, missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/peers.Echo.rs"));
}

use generated::echo_client::EchoClient;
use generated::echo_server::{Echo, EchoServer};

/// The longest message: the library's default is 4 MiB.
const LONGEST: usize = 256 << 20;

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "gRPC (tonic) over a Unix socket",
        default: "a unary call",
        tuned: Some("one bidirectional stream"),
        serve,
        connect,
    })
}

#[derive(Default)]
struct Served(std::sync::Arc<Mutex<Service>>);

#[tonic::async_trait]
impl Echo for Served {
    async fn call(&self, request: Request<Bytes>) -> std::result::Result<Response<Bytes>, Status> {
        let mut reply = Bytes::default();
        if !self.0.lock().await.answer(&request.into_inner().bytes, &mut reply.bytes) {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(reply))
    }

    type TalkStream = ReceiverStream<std::result::Result<Bytes, Status>>;

    async fn talk(
        &self,
        requests: Request<Streaming<Bytes>>,
    ) -> std::result::Result<Response<Self::TalkStream>, Status> {
        let (send, receive) = mpsc::channel(16);
        let (mut requests, service) = (requests.into_inner(), self.0.clone());
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                let mut reply = Bytes::default();
                let answers = service.lock().await.answer(&request.bytes, &mut reply.bytes);
                if answers && send.send(Ok(reply)).await.is_err() {
                    break;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receive)))
    }
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    Runtime::new()?.block_on(async {
        let listener = UnixListener::bind(meeting.path("socket"))?;
        ready("");
        let service = EchoServer::new(Served::default()).max_decoding_message_size(LONGEST);
        Ok(Server::builder().add_service(service).serve_with_incoming(UnixListenerStream::new(listener)).await?)
    })
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let (runtime, path) = (Runtime::new()?, meeting.path("socket"));
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { std::io::Result::Ok(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let endpoint = Endpoint::try_from("http://localhost")?;
    let channel = runtime.block_on(endpoint.connect_with_connector(connector))?;
    let mut client = EchoClient::new(channel).max_decoding_message_size(LONGEST);
    if !meeting.tuned() {
        return Ok(Box::new(Unary { client, runtime }));
    }
    let (send, receive) = mpsc::channel(16);
    let replies = runtime.block_on(client.talk(ReceiverStream::new(receive)))?.into_inner();
    Ok(Box::new(Talk { send, replies, runtime, _client: client }))
}

struct Unary {
    client: EchoClient<Channel>,
    runtime: Runtime,
}

impl Client for Unary {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        let request = Bytes { bytes: request.to_vec() };
        *reply = self.runtime.block_on(self.client.call(request))?.into_inner().bytes;
        Ok(())
    }
}

struct Talk {
    send: mpsc::Sender<Bytes>,
    replies: Streaming<Bytes>,
    runtime: Runtime,
    _client: EchoClient<Channel>,
}

impl Client for Talk {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        self.post(request)?;
        let received = self.runtime.block_on(self.replies.message())?;
        *reply = received.ok_or("the stream has ended")?.bytes;
        Ok(())
    }

    fn post(&mut self, message: &[u8]) -> Result<()> {
        let message = Bytes { bytes: message.to_vec() };
        Ok(self.runtime.block_on(self.send.send(message)).map_err(|_| "the stream has ended")?)
    }
}
