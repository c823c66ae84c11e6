//! A service in its own process: it opens files for its client, and returns the files as fields of the replies.

use std::io::Read;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strait::CommandExt;
use strait_typed::{Fd, TypedCalls};

const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Open { path: String },
    Add(Vec<i64>),
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Opened { file: Fd, len: u64 },
    Sum(i64),
    Failed(String),
}

type Calls = TypedCalls<Request, Reply>;

fn open(path: &str) -> std::io::Result<Reply> {
    let file = std::fs::File::open(path)?;
    let len = file.metadata()?.len();
    Ok(Reply::Opened { file: file.into(), len })
}

/// Serves requests until the client is gone.
fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let calls = Calls::over(strait::from_parent()?);
    while let Ok(mut request) = calls.next_request(LIMIT) {
        let reply = match request.take() {
            Request::Open { path } => open(&path).unwrap_or_else(|error| Reply::Failed(error.to_string())),
            Request::Add(numbers) => Reply::Sum(numbers.iter().sum()),
        };
        request.reply(&reply, LIMIT)?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return serve();
    }
    let (mut service, channel) = Command::new(std::env::current_exe()?).arg("serve").spawn_with_channel()?;
    let calls = Calls::over(channel);
    if let Reply::Sum(sum) = calls.call(&Request::Add(vec![1, 2, 39]), LIMIT)? {
        println!("the service adds: {sum}");
    }
    if let Reply::Opened { file, len } = calls.call(&Request::Open { path: "/proc/self/comm".into() }, LIMIT)? {
        let mut text = String::new();
        std::fs::File::from(file.into_fd().ok_or("a file")?).read_to_string(&mut text)?;
        println!("the service opens a file of {len} bytes, and the client reads {:?}", text.trim());
    }
    if let Reply::Failed(why) = calls.call(&Request::Open { path: "/no/such/file".into() }, LIMIT)? {
        println!("the service says why it cannot: {why}");
    }
    drop(calls);
    service.wait()?;
    Ok(())
}
