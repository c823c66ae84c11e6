//! An HTTP service of hyper and its client, in two processes, over streams.

use std::convert::Infallible;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use strait::Peer;
use strait_tokio::{Listener, Reactor, Stream};
use tokio::task::JoinSet;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);
const NAME: &str = "STRAIT_TEST_SERVICE";

/// Answers with the body of the request, and with the process id of the client in a header.
async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let pid = request.extensions().get::<Peer>().and_then(|peer| peer.pid).unwrap_or(0);
    let answer = Response::builder().header("client", pid);
    Ok(match request.into_body().collect().await {
        Ok(body) => answer.body(Full::new(body.to_bytes())).unwrap(),
        Err(_) => answer.status(StatusCode::BAD_REQUEST).body(Full::default()).unwrap(),
    })
}

#[tokio::test]
async fn child() {
    let Ok(name) = std::env::var(NAME) else { return };
    let reactor = Reactor::new().unwrap();
    let listener = Listener::bind(&name).unwrap();
    loop {
        let stream = listener.accept_stream(&reactor).await.unwrap();
        let peer = stream.peer().unwrap();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            echo(request)
        });
        // A client may close its connection at any time.
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// Sends requests with bodies of all `sizes` over one connection, and compares the answers.
async fn send_requests(name: &str, sizes: &[usize], reactor: &Reactor) {
    let stream = Stream::connect(name, reactor, DEADLINE).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    for size in sizes {
        let body: Bytes = (0..*size).map(|index| (index % 251) as u8).collect();
        let request = Request::post("/").header("host", "strait").body(Full::new(body.clone())).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["client"], std::process::id().to_string());
        assert!(answer.into_body().collect().await.unwrap().to_bytes() == body, "another body of {size} bytes");
    }
    drop(sender);
    connection.await.unwrap().unwrap();
}

/// The process of the service, which ends with the test, also if the test fails.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn an_http_service_answers_many_clients() {
    let name = format!("tokio-http-{}", std::process::id());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads", "1"]).env(NAME, &name);
    let _server = Server(command.stdout(Stdio::null()).spawn().unwrap());
    // The client may start before the server.
    let connector = strait::meet::Connector::new().wait_for_listener();
    let first = {
        let name = name.clone();
        move || connector.connect(&name, DEADLINE).map(drop)
    };
    tokio::task::spawn_blocking(first).await.unwrap().unwrap();
    let reactor = std::sync::Arc::new(Reactor::new().unwrap());
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let (name, reactor) = (name.clone(), reactor.clone());
        clients.spawn(async move { send_requests(&name, &[0, 64, 1 << 20, 1, 3 << 20], &reactor).await });
    }
    timeout(DEADLINE, clients.join_all()).await.expect("in time");
}
