//! Measures requests to an HTTP service of hyper in another process: over a [`Stream`], and over a `UnixStream`.
//!
//! ```sh
//! cargo run --release -p strait-tokio --example http [one|two|free] [sleep]
//! ```
//!
//! The service answers with the body of the request. With `one`, both processes run on the first CPU; with `two`, each
//! runs on one of the first two; with `free`, the default, neither is pinned. With `sleep`, the reactors do not poll
//! before they let their runtime sleep. One connection, one request at a time. The rounds are interleaved; the program
//! prints medians of the times, and the processor time of both processes for a request.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustix::time::{ClockId, clock_gettime};
use strait::pipe::PipeOptions;
use strait::{Channel, CommandExt, Outgoing};
use strait_tokio::{Reactor, Stream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

const ROUNDS: usize = 9;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Returns the processor time of this process in nanoseconds.
fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_nanos() as u64
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let reactor = Reactor::with_spin(if has("sleep") { Duration::ZERO } else { Reactor::SPIN })?;
    if has("one") || has("two") {
        pin(usize::from(has("child") && has("two")));
    }
    if has("child") {
        return serve(&reactor).await;
    }
    let mut command = Command::new(std::env::current_exe()?);
    let (mut child, channel) = command.arg("child").args(&arguments).spawn_with_channel()?;
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let (stream, theirs_too) = Channel::pair()?;
    channel.send(Outgoing::new(b"").handle(OwnedFd::from(theirs)).handle(theirs_too))?;
    ours.set_nonblocking(true)?;
    let mut socket = client(UnixStream::from_std(ours)?).await?;
    let mut stream = client(Stream::open(stream, &PipeOptions::new(), &reactor).await?).await?;
    for (size, requests) in [(64, 5_000), (1 << 20, 200)] {
        let body = Bytes::from(vec![7; size]);
        let (mut over_streams, mut over_sockets) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            over_streams.push(round(&mut stream, &body, requests).await?);
            over_sockets.push(round(&mut socket, &body, requests).await?);
        }
        let ratios = over_streams.iter().zip(&over_sockets).map(|(stream, socket)| stream.0 / socket.0);
        let ratio = median(ratios.collect());
        for (name, rounds) in [("Stream", over_streams), ("UnixStream", over_sockets)] {
            let time = median(rounds.iter().map(|round| round.0).collect());
            let processor = median(rounds.iter().map(|round| round.1).collect());
            println!("{size:8} B  {name:10}  {time:8.1} µs a request, {processor:8.1} µs of processor time");
        }
        println!("{size:8} B  ratio       {ratio:8.2}");
    }
    drop((stream, socket, channel));
    child.wait()?;
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn client(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<SendRequest<Full<Bytes>>> {
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Sends `requests` requests with `body` one after the other. Returns the time and the processor time of both processes
/// for a request, in microseconds.
async fn round(sender: &mut SendRequest<Full<Bytes>>, body: &Bytes, requests: u32) -> Result<(f64, f64)> {
    // The answers tell the processor time of the service.
    let before = send(sender, body).await? + processor_time();
    let begin = Instant::now();
    let mut of_service = 0;
    for _ in 0..requests {
        of_service = send(sender, body).await?;
    }
    let per_request = |nanoseconds: f64| nanoseconds / 1e3 / f64::from(requests);
    let processor = of_service + processor_time() - before;
    Ok((per_request(begin.elapsed().as_nanos() as f64), per_request(processor as f64)))
}

/// Sends one request. Returns the processor time of the service, in nanoseconds.
async fn send(sender: &mut SendRequest<Full<Bytes>>, body: &Bytes) -> Result<u64> {
    sender.ready().await?;
    let request = Request::post("/").header("host", "strait").body(Full::new(body.clone()))?;
    let answer = sender.send_request(request).await?;
    let time = answer.headers()["processor"].to_str()?.parse()?;
    assert_eq!(answer.into_body().collect().await?.to_bytes().len(), body.len());
    Ok(time)
}

async fn serve(reactor: &Reactor) -> Result<()> {
    let channel = strait::from_parent()?;
    let mut handles = channel.recv()?.take_handles()?.into_iter();
    let socket = handles.next().and_then(strait::Handle::into_fd).ok_or("no socket")?;
    let stream = handles.next().and_then(strait::Handle::into_channel).ok_or("no channel")?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    let (socket, stream) = (UnixStream::from_std(socket)?, Stream::accept(stream, reactor)?);
    // The client closes both connections at its end.
    let _ = tokio::join!(answer(socket), answer(stream));
    Ok(())
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin) -> hyper::Result<()> {
    let echo = async |request: Request<Incoming>| {
        let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let answer = Response::builder().header("processor", processor_time()).body(Full::new(body));
        Ok::<_, Infallible>(answer.expect("a header of digits"))
    };
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(echo)).await
}
