//! D-Bus between two processes, without a bus: zbus over a Unix socket.

use std::os::unix::net::{UnixListener, UnixStream};

use strait_peers::{Client, Meeting, Peer, Result, Service};
use zbus::blocking::connection::Builder;
use zbus::blocking::{Connection, Proxy};

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "D-Bus (zbus, no bus)",
        default: "a method call with an array of bytes",
        tuned: None,
        serve,
        connect,
    })
}

const PATH: &str = "/peers/Echo";
const INTERFACE: &str = "peers.Echo";

struct Echo(Service);

#[zbus::interface(name = "peers.Echo")]
impl Echo {
    fn call(&mut self, request: Vec<u8>) -> Vec<u8> {
        let mut reply = Vec::new();
        self.0.answer(&request, &mut reply);
        reply
    }

    /// Never replies.
    async fn silence(&self) {
        std::future::pending::<()>().await;
    }
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let listener = UnixListener::bind(meeting.path("socket"))?;
    ready("");
    let (stream, _) = listener.accept()?;
    let guid = zbus::Guid::generate();
    let _connection =
        Builder::async_io_unix_stream(stream).server(guid)?.p2p().serve_at(PATH, Echo(Service::default()))?.build()?;
    loop {
        std::thread::park();
    }
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let connection = Builder::async_io_unix_stream(UnixStream::connect(meeting.path("socket"))?).p2p().build()?;
    Ok(Box::new(Zbus { connection }))
}

struct Zbus {
    connection: Connection,
}

impl Client for Zbus {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        let proxy = Proxy::new(&self.connection, "peers.Echo", PATH, INTERFACE)?;
        if request.first() == Some(&b's') {
            return Ok(proxy.call("Silence", &())?);
        }
        *reply = proxy.call("Call", &(request,))?;
        Ok(())
    }
}
