//! A service that stops while clients are connected, and programs that stop while connecting. The library must not wait
//! for anything then. Every possible wait takes a minute or longer here, so the limit of ten seconds distinguishes a
//! wait from a loaded machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait::{Channel, Error};
use strait_tokio::{AsyncChannel, Listener, Reactor, Stream, connect};

const DEADLINE: Duration = Duration::from_secs(120);
const LIMIT: Duration = Duration::from_secs(10);
const NAME: &str = "STRAIT_TEST_STOPPING";
const CLIENTS: u8 = 100;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The echo service of README.
async fn serve(listener: Listener, reactor: Reactor) -> std::io::Result<()> {
    loop {
        let client = listener.accept(&reactor).await?;
        tokio::spawn(async move {
            while let Ok(message) = client.recv().await {
                if client.send(message.bytes()).await.is_err() {
                    break;
                }
            }
        });
    }
}

/// The process of the service, started by the other tests. The service stops when standard input ends, and then prints
/// how long the stop took.
#[test]
fn child() {
    let Ok(name) = std::env::var(NAME) else { return };
    let runtime = runtime();
    let service = runtime.block_on(async { (Listener::bind(&name).unwrap(), Reactor::new().unwrap()) });
    runtime.spawn(serve(service.0, service.1));
    println!("\nready");
    let _ = std::io::stdin().read(&mut [0]);
    let begin = Instant::now();
    drop(runtime);
    println!("\nstopped {}", begin.elapsed().as_millis());
}

struct Service(Child, BufReader<ChildStdout>);

impl Service {
    fn start(name: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(NAME, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut service = Self(child, output);
        service.read_line_with("ready");
        service
    }

    /// Returns the rest of the next line that begins with `word`.
    fn read_line_with(&mut self, word: &str) -> String {
        let mut lines = self.1.by_ref().lines().map(Result::unwrap);
        lines.find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).expect("a line of the service")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_service_with_connected_clients_stops_without_waiting_for_them() {
    let name = format!("stopping-{}", std::process::id());
    let mut service = Service::start(&name);
    let clients: Vec<Channel> = (0..CLIENTS).map(|_| strait::connect(&name, DEADLINE).unwrap()).collect();
    for (number, client) in (0..).zip(&clients) {
        client.send(&[number]).unwrap();
        assert_eq!(client.recv_by(DEADLINE).unwrap().bytes(), [number]);
    }
    service.0.stdin.take().unwrap().flush().unwrap();
    let took = Duration::from_millis(service.read_line_with("stopped").parse().unwrap());
    assert!(took < LIMIT, "the service stopped after {took:?}");
    for client in &clients {
        assert_eq!(client.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    }
    assert!(service.0.wait().unwrap().success());
}

/// Ends a runtime whose task waits for a listener that never accepts.
fn end_while_connecting<F>(name: &str, connect: impl FnOnce(String, Reactor) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = strait::Listener::bind(name).unwrap();
    let runtime = runtime();
    let reactor = runtime.block_on(async { Reactor::new().unwrap() });
    let connecting = runtime.spawn(connect(name.to_owned(), reactor));
    // The listener is readable once the connection waits there.
    let limit = Timespec::try_from(DEADLINE).unwrap();
    assert_eq!(poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&limit)), Ok(1));
    let begin = Instant::now();
    drop(runtime);
    assert!(begin.elapsed() < LIMIT, "the runtime waited for the connection");
    assert!(connecting.is_finished());
}

#[test]
fn a_runtime_ends_while_a_task_connects() {
    end_while_connecting(&format!("never-{}", std::process::id()), |name, reactor| async move {
        let _ = connect(&name, &reactor, DEADLINE).await;
    });
    end_while_connecting(&format!("never-stream-{}", std::process::id()), |name, reactor| async move {
        let _ = Stream::connect(&name, &reactor, DEADLINE).await;
    });
}

/// A task of a second runtime waits for a channel of the reactor of a first runtime. Calls `end` to end the first
/// runtime or the reactor, and returns the error of the task, and both ends of the channel.
fn wait_for_what_ends(end: impl FnOnce(tokio::runtime::Runtime, Reactor)) -> (Error, Channel, Channel) {
    let (first, second) = (runtime(), runtime());
    let (ours, theirs) = Channel::pair().unwrap();
    let reactor = first.block_on(async { Reactor::new().unwrap() });
    let channel = AsyncChannel::new(theirs, &reactor).unwrap();
    let (waits, waiting) = std::sync::mpsc::channel();
    let task = second.spawn(async move {
        let received = std::future::poll_fn(|context| {
            let received = channel.poll_recv(context);
            let _ = waits.send(());
            received
        });
        let error = tokio::time::timeout(DEADLINE, received).await.expect("the task learns of the end").unwrap_err();
        (error, channel)
    });
    waiting.recv_timeout(DEADLINE).unwrap();
    end(first, reactor);
    let (error, channel) = second.block_on(task).unwrap();
    // Each later wait fails at once.
    assert_eq!(second.block_on(channel.recv()).unwrap_err(), Error::ReactorEnded);
    (error, ours, channel.into_inner())
}

#[test]
fn a_task_of_another_runtime_learns_that_the_runtime_of_its_reactor_has_ended() {
    let mut kept = None;
    let ended_by_runtime = wait_for_what_ends(|runtime, reactor| {
        drop(runtime);
        kept = Some(reactor);
    });
    let ended_by_drop = wait_for_what_ends(|runtime, reactor| {
        drop(reactor);
        runtime.shutdown_background();
    });
    for (error, ours, theirs) in [ended_by_runtime, ended_by_drop] {
        assert_eq!(error, Error::ReactorEnded);
        ours.send(b"nothing was lost").unwrap();
        assert_eq!(theirs.recv_by(DEADLINE).unwrap().bytes(), b"nothing was lost");
    }
}

/// A runtime that does not run cannot drop the task that drives the reactor.
#[test]
fn dropping_the_reactor_ends_it_though_nothing_runs_its_runtime() {
    let idle = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reactor = idle.block_on(async { Reactor::new().unwrap() });
    let (_ours, theirs) = Channel::pair().unwrap();
    let channel = AsyncChannel::new(theirs, &reactor).unwrap();
    drop(reactor);
    let received = runtime().block_on(async { tokio::time::timeout(DEADLINE, channel.recv()).await });
    assert_eq!(received.expect("the task learns of the end").unwrap_err(), Error::ReactorEnded);
}

#[tokio::test]
async fn connecting_tells_why_it_failed() {
    let reactor = Reactor::new().unwrap();
    let failed = connect("nobody-listens-here", &reactor, DEADLINE).await.unwrap_err();
    let failed = failed.downcast::<strait::meet::MeetError>().unwrap();
    assert_eq!((failed.error, failed.name.as_deref()), (Error::NobodyThere, Some("nobody-listens-here")));
}
