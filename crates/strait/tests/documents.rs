//! Tests that documents agree with the code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use strait::call::CallError;
use strait::meet::{MeetError, Refusal};
use strait::quota::Resource;
use strait::region::Region;
use strait::{CommandExt, Deadline, Error, Listener, MAX_MESSAGE, Options, SendError, connect};

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns `text` with each number replaced by N.
fn numbers_aside(text: &str) -> String {
    let mut out = String::new();
    for part in text.split_inclusive(|c: char| c.is_ascii_digit()) {
        match part.strip_suffix(|c: char| c.is_ascii_digit()) {
            Some("") if out.ends_with('N') => {}
            Some(before) => out.extend([before, "N"]),
            None => out.push_str(part),
        }
    }
    out
}

#[test]
fn every_error_is_explained_by_its_text() {
    let whole = document("reference/errors.md");
    // The tables of texts come before the first heading below the title.
    let (explained, _) = whole.split_once("\n## ").unwrap();
    let version = Refusal::Version { ours: (1, 1), theirs: (2, 3) };
    let refusals = [version, Refusal::Token, Refusal::Policy, Refusal::Busy, Refusal::Unknown];
    let errors = [
        Error::WouldBlock,
        Error::TimedOut,
        Error::Interrupted,
        Error::Signalled,
        Error::PeerClosed,
        Error::MessageTooLarge { len: 10, limit: 5 },
        Error::MessageTooLarge { len: MAX_MESSAGE + 1, limit: 5 },
        Error::MessageTooLarge { len: (1 << 30) + 1, limit: 1 << 30 },
        Error::TooManyHandles { count: 65, limit: 64 },
        Error::BufferTooSmall { needed: 100 },
        Error::BadHandle,
        Error::OwnChannel,
        Error::ReadOnly,
        Error::NotSealed,
        Error::StillMapped,
        Error::OutOfRange { len: 10 },
        Error::NotElements { element: 12 },
        Error::Finished,
        Error::Aborted { reason: 17 },
        Error::Aborted { reason: strait::pipe::PANICKED },
        Error::NotARegion("REASON"),
        Error::InSet,
        Error::NotInSet,
        Error::ReactorEnded,
        Error::OutcomeUnknown,
        Error::NotAnswered,
        Error::NotArmed,
        Error::HandlesLost { sent: 5, arrived: 3 },
        Error::NoDescriptors,
        Error::NoMemory { call: "mmap" },
        Error::LimitReached(Resource::Memory),
        Error::BadPeer("REASON"),
        Error::Forked,
        Error::NotASocket("REASON"),
        Error::BadName,
        Error::NameTaken,
        Error::NobodyThere,
        Error::UnsafeDirectory("REASON"),
        Error::WrongServer { uid: 1000 },
        Error::NoInvitation,
        Error::NotActivated,
        Error::NoParent,
        Error::ParentTaken,
        Error::System { call: "mmap", code: 1 },
        Error::System { call: "open", code: 2 },
    ];
    let texts = errors.into_iter().chain(refusals.map(Error::Refused)).map(|error| error.to_string());
    let texts = texts.chain(call_errors().map(|error| error.to_string()));
    let texts: BTreeSet<_> = texts.chain(send_errors()).chain(meet_errors()).chain(region_errors()).collect();
    for text in &texts {
        let row = format!("| `{}` |", numbers_aside(text));
        assert!(explained.contains(&row), "docs/reference/errors.md lacks {row}");
    }
    let rows = explained.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, texts.len(), "docs/reference/errors.md explains errors that do not exist");
}

/// Returns the texts of errors specific to sending.
fn send_errors() -> [String; 2] {
    let (sender, _receiver) = Options::new().queue_messages(1).pair().unwrap();
    sender.send(b"fills the limit").unwrap();
    let late = sender.send_by(b"one too many", Duration::from_millis(10)).unwrap_err();
    [sender.try_send(b"one too many").unwrap_err(), late].map(|failed| failed.to_string())
}

/// Returns the texts that only errors of meeting have, with words in place of the names and paths.
fn meet_errors() -> [String; 9] {
    let name = format!("documents-{}", std::process::id());
    let connecting = |failed: MeetError| {
        let text = failed.to_string();
        let text = text.strip_prefix(&failed.doing()).unwrap();
        format!("connecting to \"NAME\" at PATH{text}")
    };
    let listener = Listener::bind(&name).unwrap();
    let [now, late] = [Duration::ZERO, Duration::from_millis(50)]
        .map(|limit| if limit.is_zero() { Deadline::NOW } else { Deadline::after(limit) })
        .map(|deadline| connecting(connect(&name, deadline).unwrap_err()));
    let accepting = |failed: MeetError| {
        let text = failed.to_string();
        format!("accepting a process at PATH{}", text.strip_prefix(&failed.doing()).unwrap())
    };
    // The two processes above have gone.
    let [none_now, none_late] = [Deadline::NOW, Deadline::after(Duration::from_millis(50))]
        .map(|deadline| accepting(listener.accept(deadline).unwrap_err()));
    listener.interrupter().interrupt();
    let interrupted = accepting(listener.accept(Deadline::NEVER).unwrap_err());
    drop(listener);
    // A listener that has not seen the two connections above is readable only once the third is there.
    let listener = Listener::bind(&name).unwrap();
    let connects_to = name.clone();
    let client = std::thread::spawn(move || connect(&connects_to, Duration::from_secs(60)).unwrap_err());
    let mut poll = [PollFd::new(&listener, PollFlags::IN)];
    rustix::event::poll(&mut poll, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })).unwrap();
    drop(listener);
    let closed = connecting(client.join().unwrap());
    let missing = std::process::Command::new("/nowhere/program").spawn_with_channel().unwrap_err();
    let missing = missing.to_string().replace("/nowhere/program", "PROGRAM");
    let listener = Listener::bind(&name).unwrap();
    let invitation = listener.invite(Duration::from_secs(60)).unwrap();
    drop(listener);
    let dropped = invitation.accept(Deadline::NOW).unwrap_err();
    let dropped = dropped.to_string().replace(dropped.path.as_ref().unwrap().to_str().unwrap(), "PATH");
    [now, late, closed, missing, none_now, none_late, interrupted, dropped, not_found_by_the_invited()]
}

/// Returns the error of an invitation to a listener whose path does not fit in one line, with a word in place of the
/// path.
fn not_found_by_the_invited() -> String {
    let directory = std::env::temp_dir().join(format!("strait-documents-{}\nof-two-lines", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let listener = Listener::builder().directory(&directory).bind("name").unwrap();
    let failed = listener.invite(Duration::from_secs(60)).unwrap_err();
    let text = failed.to_string().replace(listener.path().to_str().unwrap(), "PATH");
    std::fs::remove_dir_all(&directory).unwrap();
    text
}

/// Returns the texts of errors specific to regions.
fn region_errors() -> [String; 5] {
    let region = Region::new(4096).unwrap();
    let outside = region.map(..5000).unwrap_err();
    let reader = region.reader().unwrap();
    let [write, seal] = [reader.write_at(b"x", 0).unwrap_err(), reader.seal().unwrap_err()];
    let mapping = region.map(..).unwrap().write_at(b"x", 0).unwrap_err();
    region.seal().unwrap();
    [outside, region.map_writable(..).unwrap_err(), write, seal, mapping].map(|error| error.to_string())
}

/// Returns the errors of a call that has no reply.
fn call_errors() -> [CallError; 7] {
    [
        CallError::NotSent(SendError { error: Error::Forked, handles: Vec::new() }),
        CallError::OutcomeUnknown(Error::TimedOut),
        CallError::OutcomeUnknown(Error::WouldBlock),
        CallError::OutcomeUnknown(Error::PeerClosed),
        CallError::OutcomeUnknown(Error::Forked),
        CallError::OutcomeUnknown(Error::Interrupted),
        CallError::NotAnswered,
    ]
}

/// Shows that each error of a call whose request may have been sent speaks of repeating the request, and none advises
/// to call again.
#[test]
fn a_request_that_was_sent_is_not_to_be_sent_again() {
    let converted = [Error::OutcomeUnknown, Error::NotAnswered].map(|error| error.to_string());
    for text in call_errors().iter().skip(1).map(|error| error.to_string()).chain(converted) {
        assert!(text.contains("repeat") && !text.contains("call again"), "{text}");
    }
}

/// Shows that an error advises to raise a limit only if the limit can be raised that far.
#[test]
fn no_limit_is_to_be_raised_above_the_most_there_is() {
    let text = |len| Error::MessageTooLarge { len, limit: 5 }.to_string();
    assert!(text(MAX_MESSAGE).contains("raise Options::max_message"));
    assert!(!text(MAX_MESSAGE + 1).contains("raise"), "{}", text(MAX_MESSAGE + 1));
}

/// Returns the contents of the files of the library that make system calls.
fn sources() -> Vec<String> {
    sources_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/os"))
}

fn sources_in(directory: &Path) -> Vec<String> {
    files_in(directory).iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// Returns the Rust files in a directory and in the directories in it.
fn files_in(directory: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = paths.flat_map(|path| if path.is_dir() { files_in(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// Returns whether a line is a comment of prose: not code, a row of a table, or a part of a figure.
fn is_prose(line: &str) -> bool {
    let comment = line.trim_start();
    let text = comment.trim_start_matches('/').trim_start_matches('!').trim_start();
    comment.starts_with("//") && !text.starts_with('|') && text.is_ascii()
}

/// Shows that comments are as narrow as code. The formatter leaves comments alone.
#[test]
fn no_comment_is_wider_than_120_columns() {
    let mut wide = Vec::new();
    for path in files_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")) {
        let source = std::fs::read_to_string(&path).unwrap();
        let mut is_code = false;
        for (number, line) in (1..).zip(source.lines()) {
            is_code ^= line.trim_start().starts_with("//") && line.contains("```");
            if !is_code && is_prose(line) && line.chars().count() > 120 {
                wide.push(format!("{}:{number}", path.display()));
            }
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

#[test]
fn every_system_call_is_listed() {
    let listed = document("reference/system-calls.md");
    let mut count = 0;
    for source in sources() {
        for named in source.split("call(\"").skip(1) {
            let name = named.split('"').next().unwrap();
            assert!(listed.contains(&format!("`{name}`")), "docs/reference/system-calls.md lacks {name}");
            count += 1;
        }
    }
    assert!(count > 40, "the search for system calls found only {count}");
}
