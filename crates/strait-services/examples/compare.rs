//! Services of gRPC (tonic) and tarpc over Strait and over a Unix socket: `cargo run --release --example compare`.
//!
//! The services run in a process of their own. The transports take turns; each figure is the median of the rounds, and
//! each ratio is the median of the ratios of the rounds. The processor time is the sum of both processes. Both
//! processes have tokio's single-threaded runtime, and busy-poll by Strait's default; `STRAIT_SPIN=0` turns
//! busy-polling off. The arguments `grpc` and `tarpc` limit the measurement to one service.

use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use strait_services::{grpc, processor_time, tarpc};
use strait_tokio::{Listener, Reactor};
use tokio::net::UnixListener;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ROUNDS: usize = 9;

/// A row of the comparison: the bytes of a request, the requests in flight at a time, and the requests of a round.
const CASES: [(usize, usize, usize); 3] = [(64, 1, 2_000), (64, 32, 5_000), (1 << 20, 1, 60)];

/// A client of one of the services, over one of the transports.
#[derive(Clone)]
enum Client {
    Grpc(grpc::Client),
    Tarpc(tarpc::EchoClient),
}

impl Client {
    /// Calls the service. Returns the processor time of the service, in nanoseconds.
    async fn call(&mut self, body: &Bytes) -> Result<u64> {
        Ok(match self {
            Self::Grpc(client) => client.echo(grpc::Request { body: body.clone() }).await?.into_inner().processor_time,
            Self::Tarpc(client) => {
                let mut context = ::tarpc::context::current();
                context.deadline += Duration::from_secs(60);
                client.echo(context, body.to_vec().into()).await?.processor_time
            }
        })
    }
}

/// Makes `requests` calls, `at_once` of them at a time. Returns the time and the processor time of both processes for a
/// request, in microseconds.
async fn round(client: &Client, body: &Bytes, at_once: usize, requests: usize) -> Result<(f64, f64)> {
    let mut first = client.clone();
    let before = first.call(body).await? + processor_time();
    let begin = Instant::now();
    let mut of_service = 0;
    let calls: FuturesUnordered<_> = (0..at_once)
        .map(|_| {
            let mut client = client.clone();
            async move {
                let mut of_service = 0;
                for _ in 0..requests / at_once {
                    of_service = client.call(body).await?;
                }
                Result::Ok(of_service)
            }
        })
        .collect();
    for called in calls.collect::<Vec<_>>().await {
        of_service = called?.max(of_service);
    }
    let made = (requests / at_once * at_once) as f64;
    let elapsed = begin.elapsed().as_secs_f64() * 1e6 / made;
    Ok((elapsed, (of_service + processor_time() - before) as f64 / 1e3 / made))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn compare(kind: &str, over_strait: Client, over_socket: Client) -> Result<()> {
    for (size, at_once, requests) in CASES {
        let body = Bytes::from(vec![7; size]);
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let strait = round(&over_strait, &body, at_once, requests).await?;
            rounds.push((strait, round(&over_socket, &body, at_once, requests).await?));
        }
        let strait = (median(rounds.iter().map(|round| round.0.0)), median(rounds.iter().map(|round| round.0.1)));
        let socket = (median(rounds.iter().map(|round| round.1.0)), median(rounds.iter().map(|round| round.1.1)));
        let ratio = median(rounds.iter().map(|(strait, socket)| strait.0 / socket.0));
        println!(
            "{kind:5} {size:8} B, {at_once:2} at a time: Unix socket {:7.1} us ({:6.0}/s, CPU {:7.1} us), Strait {:7.1} us \
             ({:6.0}/s, CPU {:7.1} us), ratio {ratio:.2}",
            socket.0,
            1e6 / socket.0,
            socket.1,
            strait.0,
            1e6 / strait.0,
            strait.1,
        );
    }
    Ok(())
}

fn name(kind: &str, parent: u32) -> String {
    format!("compare-{kind}-{parent}")
}

fn path(kind: &str, parent: u32) -> String {
    std::env::temp_dir().join(name(kind, parent)).to_string_lossy().into_owned()
}

async fn serve(parent: u32) -> Result<()> {
    let reactor = Reactor::new()?;
    let sockets = (UnixListener::bind(path("grpc", parent))?, UnixListener::bind(path("tarpc", parent))?);
    let listeners = (Listener::bind(&name("grpc", parent))?, Listener::bind(&name("tarpc", parent))?);
    println!("ready");
    let served = tokio::join!(
        grpc::serve_socket(sockets.0),
        tarpc::serve_socket(sockets.1),
        grpc::serve(listeners.0, &reactor),
        tarpc::serve(listeners.1, &reactor)
    );
    served.0?;
    Ok(())
}

/// The process of the services. Dropping it kills the process and removes its sockets.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Each call fails only for a process that has ended, or has not made its sockets.
        let _ = self.0.kill();
        let _ = self.0.wait();
        for kind in ["grpc", "tarpc"] {
            let _ = std::fs::remove_file(path(kind, std::process::id()));
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [serving, parent] = &arguments[..]
        && serving == "serve"
    {
        return serve(parent.parse()?).await;
    }
    let own = std::process::id();
    let mut command = Command::new(std::env::current_exe()?);
    let mut server = Server(command.args(["serve", &own.to_string()]).stdout(std::process::Stdio::piped()).spawn()?);
    let mut line = String::new();
    let output = server.0.stdout.take().ok_or("no output")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)?;
    let reactor = Arc::new(Reactor::new()?);
    let is_wanted = |kind: &str| arguments.is_empty() || arguments.iter().any(|wanted| wanted == kind);
    if is_wanted("grpc") {
        let over_strait = Client::Grpc(grpc::connect(&name("grpc", own), reactor.clone()).await?);
        compare("gRPC", over_strait, Client::Grpc(grpc::connect_socket(&path("grpc", own)).await?)).await?;
    }
    if is_wanted("tarpc") {
        let over_strait = Client::Tarpc(tarpc::connect(&name("tarpc", own), &reactor).await?);
        compare("tarpc", over_strait, Client::Tarpc(tarpc::connect_socket(&path("tarpc", own)).await?)).await?;
    }
    Ok(())
}
