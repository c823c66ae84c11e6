//! Cap'n Proto's remote calls over a Unix socket.

use capnp_rpc::{RpcSystem, rpc_twoparty_capnp, twoparty};
use futures::AsyncReadExt as _;
use strait_peers::{Client, Meeting, Peer, Result, Service};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

mod echo_capnp {
    #![allow(clippy::all, missing_docs, unused)]
    include!(concat!(env!("OUT_DIR"), "/echo_capnp.rs"));
}

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "Cap'n Proto calls",
        default: "a method with Data, current-thread runtime",
        tuned: None,
        serve,
        connect,
    })
}

struct Echo(std::cell::RefCell<Service>);

impl echo_capnp::echo::Server for Echo {
    async fn call(
        self: std::rc::Rc<Self>,
        parameters: echo_capnp::echo::CallParams,
        mut results: echo_capnp::echo::CallResults,
    ) -> std::result::Result<(), capnp::Error> {
        let mut reply = Vec::new();
        let answers = self.0.borrow_mut().answer(parameters.get()?.get_request()?, &mut reply);
        if !answers {
            std::future::pending::<()>().await;
        }
        results.get().set_reply(&reply);
        Ok(())
    }
}

fn network(
    stream: UnixStream,
    side: rpc_twoparty_capnp::Side,
) -> Box<twoparty::VatNetwork<futures::io::ReadHalf<tokio_util::compat::Compat<UnixStream>>>> {
    let (reader, writer) = stream.compat().split();
    let limits = *capnp::message::ReaderOptions::new().traversal_limit_in_words(None);
    Box::new(twoparty::VatNetwork::new(reader, writer, side, limits))
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = UnixListener::bind(meeting.path("socket"))?;
        ready("");
        let (stream, _) = listener.accept().await?;
        let echo: echo_capnp::echo::Client = capnp_rpc::new_client(Echo(Service::default().into()));
        Ok(RpcSystem::new(network(stream, rpc_twoparty_capnp::Side::Server), Some(echo.client)).await?)
    })
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    let (runtime, local) = (Builder::new_current_thread().enable_all().build()?, LocalSet::new());
    let path = meeting.path("socket");
    let echo = local.block_on(&runtime, async {
        let stream = UnixStream::connect(path).await?;
        let mut system = RpcSystem::new(network(stream, rpc_twoparty_capnp::Side::Client), None);
        let echo: echo_capnp::echo::Client = system.bootstrap(rpc_twoparty_capnp::Side::Server);
        tokio::task::spawn_local(system);
        Result::Ok(echo)
    })?;
    Ok(Box::new(Capnp { echo, local, runtime }))
}

struct Capnp {
    echo: echo_capnp::echo::Client,
    local: LocalSet,
    runtime: Runtime,
}

impl Client for Capnp {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        self.local.block_on(&self.runtime, async {
            let mut call = self.echo.call_request();
            call.get().set_request(request);
            let answer = call.send().promise.await?;
            reply.clear();
            reply.extend_from_slice(answer.get()?.get_reply()?);
            Ok(())
        })
    }
}
