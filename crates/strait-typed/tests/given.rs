//! Given values: objects within a process, encoded for another process.

mod common;

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{LIMIT, Scratch};
use serde::{Deserialize, Serialize};
use strait::Deadline;
use strait_typed::codec::MsgPack;
use strait_typed::{Encoded, End, Fd, RecvError, SendError, Typed};

/// A value that counts encodings in a static.
struct Counted<const N: usize>(String);

static ENCODED: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

fn encoded<const N: usize>() -> usize {
    ENCODED[N].load(Ordering::SeqCst)
}

impl<const N: usize> Serialize for Counted<N> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ENCODED[N].fetch_add(1, Ordering::SeqCst);
        self.0.serialize(serializer)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Counted<N> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

#[test]
fn a_given_value_is_not_encoded_in_this_process_and_a_borrowed_one_is() {
    let (near, far) = Typed::<Counted<0>, Counted<0>>::pair().unwrap();
    let text = "x".repeat(1000);
    let address = text.as_ptr();
    near.send_owned(Counted(text), LIMIT).unwrap();
    let received = far.recv_by(LIMIT).unwrap().0;
    assert_eq!((received.as_ptr(), received.len(), encoded::<0>()), (address, 1000, 0));
    near.send(&Counted(received)).unwrap();
    assert_eq!((far.recv_by(LIMIT).unwrap().0.len(), encoded::<0>()), (1000, 1));
    // Given and encoded values arrive in the order of sending.
    near.send(&Counted("a".into())).unwrap();
    near.send_owned(Counted("b".into()), LIMIT).unwrap();
    near.send(&Counted("c".into())).unwrap();
    assert_eq!([(); 3].map(|()| far.recv_by(LIMIT).unwrap().0), ["a", "b", "c"]);
    assert_eq!(encoded::<0>(), 3);
}

#[test]
fn a_given_value_is_encoded_for_a_receiver_of_bytes() {
    let (near, far) = Typed::<Counted<1>, Counted<1>>::pair().unwrap();
    near.send_owned(Counted("text".into()), LIMIT).unwrap();
    let mut message = Encoded::new();
    far.recv_encoded(&mut message, LIMIT).unwrap();
    let received: &str = message.get().unwrap();
    assert_eq!((received, encoded::<1>()), ("text", 1));
}

#[test]
fn a_given_value_is_encoded_when_its_end_leaves_the_process() {
    if std::env::var_os("STRAIT_TYPED_CHILD").is_some() {
        let parent = Typed::<String, End<(), Counted<2>>>::from_parent().unwrap();
        let end = parent.recv_by(LIMIT).unwrap().into_typed().unwrap();
        let texts = [end.recv_by(LIMIT).unwrap().0, end.recv_by(LIMIT).unwrap().0];
        return parent.send(&texts.join(" ")).unwrap();
    }
    let (near, far) = Typed::<Counted<2>, ()>::pair().unwrap();
    near.send_owned(Counted("here".into()), LIMIT).unwrap();
    assert_eq!(encoded::<2>(), 0);

    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_given_value_is_encoded_when_its_end_leaves_the_process"]);
    command.env("STRAIT_TYPED_CHILD", "1").stdout(Stdio::null());
    let (mut child, typed) = Typed::<End<(), Counted<2>>, String>::spawn(&mut command).unwrap();
    typed.send_by(&far.into(), LIMIT).unwrap();
    assert_eq!(encoded::<2>(), 1);
    near.send_owned(Counted("there".into()), LIMIT).unwrap();
    assert_eq!(encoded::<2>(), 2);
    assert_eq!(typed.recv_by(LIMIT).unwrap(), "here there");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_given_value_that_is_not_sent_comes_back() {
    let (near, far) = Typed::<Counted<3>, ()>::pair().unwrap();
    drop(far);
    let failed = near.send_owned(Counted("mine".into()), LIMIT).unwrap_err();
    assert_eq!(failed.error, SendError::Channel(strait::Error::PeerClosed));
    assert_eq!(failed.value.unwrap().0, "mine");

    let (one, other) = strait::Options::new().queue_messages(2).pair().unwrap();
    let near = Typed::<Counted<3>, ()>::over(one);
    let failed = (0..100).find_map(|_| near.send_owned(Counted("mine".into()), Deadline::NOW).err()).unwrap();
    assert_eq!(failed.error, SendError::Channel(strait::Error::WouldBlock));
    assert_eq!(failed.value.unwrap().0, "mine");
    drop(other);
    assert_eq!(encoded::<3>(), 0);
}

#[test]
fn a_given_value_that_another_process_has_no_room_for_comes_back_with_its_handles() {
    if std::env::var_os("STRAIT_TYPED_CHILD").is_some() {
        let _parent = Typed::<(), (String, Fd)>::from_parent().unwrap();
        // Reads no message until the parent closes this process's standard input.
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_given_value_that_another_process_has_no_room_for_comes_back_with_its_handles"]);
    command.env("STRAIT_TYPED_CHILD", "1").stdout(Stdio::null()).stdin(Stdio::piped());
    let (mut child, near) = Typed::<(String, Fd), ()>::spawn(&mut command).unwrap();
    let file = Scratch::new(b"");
    // A value that cannot be encoded, since its handle was sent, comes back too.
    let sent = Fd::from(file.open());
    let (other, _far) = Typed::<Fd, ()>::pair().unwrap();
    other.send(&sent).unwrap();
    let failed = near.send_owned(("mine".to_owned(), sent), LIMIT).unwrap_err();
    assert!(matches!(failed.error, SendError::Encode(_)), "{failed}");
    assert_eq!(failed.value.unwrap().0, "mine");
    for (deadline, error) in
        [(Deadline::NOW, strait::Error::WouldBlock), (Duration::from_millis(10).into(), strait::Error::TimedOut)]
    {
        let send = || near.send_owned(("mine".to_owned(), file.open().into()), deadline).err();
        let failed = (0..1 << 20).find_map(|_| send()).unwrap();
        assert_eq!(failed.error, SendError::Channel(error));
        let (text, fd) = failed.value.unwrap();
        assert!(text == "mine" && fd.into_fd().is_some());
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let failed = near.send_owned(("mine".to_owned(), file.open().into()), LIMIT).unwrap_err();
    assert_eq!(failed.error, SendError::Channel(strait::Error::PeerClosed));
    assert!(failed.value.unwrap().1.into_fd().is_some());
}

#[test]
fn handles_in_a_given_value_arrive_within_the_process_and_as_bytes() {
    let file = Scratch::new(b"");
    let (near, far) = Typed::<Vec<Fd>, Vec<Fd>, MsgPack>::pair().unwrap();
    near.send_owned(vec![file.open().into()], LIMIT).unwrap();
    let given = far.recv_by(LIMIT).unwrap();
    assert!(!given[0].is_sent());
    near.send_owned(given, LIMIT).unwrap();
    let mut message = Encoded::new();
    far.recv_encoded(&mut message, LIMIT).unwrap();
    let fds: Vec<Fd> = message.get().unwrap();
    assert_eq!((fds.len(), file.held()), (1, 1));
    drop(fds);
    near.send_owned(vec![file.open().into()], LIMIT).unwrap();
    drop((near, far));
    file.wait_until_closed();
}

#[test]
fn a_given_value_that_cannot_be_encoded_is_an_error_at_both_ends() {
    #[derive(Debug)]
    struct Broken;
    impl Serialize for Broken {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("never"))
        }
    }
    let (one, other) = strait::Channel::pair().unwrap();
    let (near, far) = (Typed::<Broken, (), MsgPack>::over(one), Typed::<(), u32, MsgPack>::over(other));
    near.send_owned(Broken, LIMIT).unwrap();
    // The receiver expects another type, so it asks for bytes.
    assert!(matches!(far.recv_by(LIMIT), Err(RecvError::Malformed(_))));
    assert!(matches!(near.send(&Broken), Err(SendError::Encode(what)) if what.contains("never")));
}
