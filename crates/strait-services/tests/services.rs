//! The services and their clients over Strait, in two processes.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use strait_services::{grpc, tarpc};
use strait_tokio::{Listener, Reactor};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(60);
const NAME: &str = "STRAIT_TEST_SERVICE";

/// The program started by the tests: the service of gRPC by hyper and by tonic's server, and that of tarpc.
#[tokio::test]
async fn child() {
    let Ok(name) = std::env::var(NAME) else { return };
    let reactor = Reactor::new().unwrap();
    let grpc = grpc::serve(Listener::bind(&format!("{name}-grpc")).unwrap(), &reactor);
    let tonic = grpc::serve_by_tonic(Listener::bind(&format!("{name}-tonic")).unwrap(), &reactor);
    let tarpc = tarpc::serve(Listener::bind(&format!("{name}-tarpc")).unwrap(), &reactor);
    let (grpc, tonic, tarpc) = tokio::join!(grpc, tonic, tarpc);
    grpc.and(tarpc).unwrap();
    tonic.unwrap();
}

/// The process of the services; killed at the end of a test, also of a failed test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the services, and waits until the service of this kind listens. Returns the name of the service.
fn start(test: &str, kind: &str) -> (Server, String) {
    let name = format!("services-{test}-{}", std::process::id());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(NAME, &name).stdout(Stdio::null());
    let server = Server(command.spawn().unwrap());
    let name = format!("{name}-{kind}");
    strait::meet::Connector::new().wait_for_listener().connect(&name, LIMIT).unwrap();
    (server, name)
}

fn body(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

const SIZES: [usize; 5] = [0, 1, 64, 100_000, 1 << 20];

#[tokio::test]
async fn a_grpc_service_answers_and_knows_its_client() {
    answers("grpc", "grpc").await;
}

#[tokio::test]
async fn the_server_of_tonic_takes_streams_and_knows_their_clients() {
    answers("incoming", "tonic").await;
}

/// Asserts that a service of gRPC answers many calls with their own bodies and the number of this process.
async fn answers(test: &str, kind: &str) {
    let (_server, name) = start(test, kind);
    let reactor = Arc::new(Reactor::new().unwrap());
    let client = timeout(LIMIT, grpc::connect(&name, reactor)).await.expect("in time").unwrap();
    // Many calls at a time over one connection.
    let calls = (0..20).map(|call| {
        let (mut client, body) = (client.clone(), body(SIZES[call % SIZES.len()] + call));
        tokio::spawn(async move {
            let reply = client.echo(grpc::Request { body: Bytes::from(body.clone()) }).await.unwrap().into_inner();
            assert!(reply.body == body, "another body of {} bytes", body.len());
            assert_eq!(reply.client, std::process::id());
        })
    });
    for call in calls.collect::<Vec<_>>() {
        timeout(LIMIT, call).await.expect("in time").unwrap();
    }
}

#[tokio::test]
async fn a_tarpc_service_answers_and_knows_its_client() {
    let (_server, name) = start("tarpc", "tarpc");
    let reactor = Reactor::new().unwrap();
    let client = timeout(LIMIT, tarpc::connect(&name, &reactor)).await.expect("in time").unwrap();
    let calls = (0..20).map(|call| {
        let (client, body) = (client.clone(), body(SIZES[call % SIZES.len()] + call));
        tokio::spawn(async move {
            let mut context = ::tarpc::context::current();
            context.deadline += LIMIT;
            let reply = client.echo(context, body.clone().into()).await.unwrap();
            assert!(reply.body == body, "another body of {} bytes", body.len());
            assert_eq!(reply.client, std::process::id());
        })
    });
    for call in calls.collect::<Vec<_>>() {
        timeout(LIMIT, call).await.expect("in time").unwrap();
    }
}

#[tokio::test]
async fn the_death_of_the_server_is_an_error_of_the_call() {
    let (server, name) = start("death", "grpc");
    let reactor = Arc::new(Reactor::new().unwrap());
    let mut client = timeout(LIMIT, grpc::connect(&name, reactor)).await.expect("in time").unwrap();
    client.echo(grpc::Request { body: Bytes::new() }).await.unwrap();
    drop(server);
    timeout(LIMIT, client.echo(grpc::Request { body: Bytes::new() })).await.expect("in time").unwrap_err();
}
