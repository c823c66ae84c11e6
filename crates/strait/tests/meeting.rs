//! Tests of how processes meet: names, invitations, socket activation, and which processes are accepted.

mod common;

use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use common::{Actor, DEADLINE, SOON, alone, command, echo, finish, wait_until};
use strait::meet::{Connector, MeetError, Refusal, Refused, invited};
use strait::{Channel, CommandExt, Deadline, Error, Listener, Options, connect};

#[test]
fn child() {
    common::play(&[
        ("binds", binds),
        ("calls", calls),
        ("is refused", is_refused),
        ("client", client),
        ("client as nobody", client_as_nobody),
        ("server", server),
        ("server as nobody", server_as_nobody),
        ("server until killed", server_until_killed),
        ("holds locks", holds_locks),
        ("without what it takes", without_what_it_takes),
        ("holds the lock of a name", holds_the_lock_of_a_name),
        ("tries to listen", tries_to_listen),
        ("invited", was_invited),
        ("invited then killed", invited_then_killed),
        ("invited in vain", invited_in_vain),
        ("invites from a relative directory", invites_from_a_relative_directory),
        ("waits beside admitted", waits_beside_admitted),
        ("intruder", intruder),
        ("activated", activated),
        ("without watches", without_watches),
        ("takes parent without descriptors", takes_parent_without_descriptors),
        ("squatter", squatter),
        ("crowd", crowd),
        ("accepts", accepts),
        ("deadlines", deadlines),
        ("short of descriptors", short_of_descriptors),
        ("announced client", announced_client),
        ("accepts without descriptors", accepts_without_descriptors),
        ("beside a crowd", beside_a_crowd),
    ]);
}

/// The path of a name directory for a test, removed on drop.
struct Names(PathBuf);

impl Names {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("strait-meeting-{}-{test}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    fn listener(&self, name: &str) -> Listener {
        Listener::builder().directory(&self.0).bind(name).unwrap()
    }

    fn connector(&self) -> Connector {
        Connector::new().directory(&self.0)
    }

    /// Returns the names of all files in the directory, hidden ones included.
    fn all(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut all: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("left out: it takes root to be two users");
    }
    root
}

/// Connects to the name `name` in `directory`, given as "directory name", sends a message, and expects the same message
/// back.
fn client(argument: &str) {
    let (directory, name) = argument.split_once(' ').unwrap();
    let channel = Connector::new().directory(directory).connect(name, DEADLINE).unwrap();
    channel.send(b"hello from a client").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"hello from a client");
}

/// Listens to the name `name` in `directory`, given as "directory name", and returns the listener.
fn serve(argument: &str) -> Listener {
    let (directory, name) = argument.split_once(' ').unwrap();
    let listener = Listener::builder().directory(directory).bind(name).unwrap();
    println!("listening");
    listener
}

fn server(argument: &str) {
    let listener = serve(argument);
    echo(&listener.accept(DEADLINE).unwrap());
}

fn server_until_killed(argument: &str) {
    let _listener = serve(argument);
    std::thread::sleep(2 * DEADLINE);
}

/// Runs `play` and returns its result, while another thread calls `accept` until shortly after `play` has returned;
/// asserts that no call accepts a connection.
fn while_nobody_is_let_in<T>(
    accept: impl Fn(Duration) -> Result<Channel, MeetError> + Sync,
    play: impl FnOnce() -> T,
) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            loop {
                let is_last = over.load(Ordering::SeqCst);
                match accept(Duration::from_millis(200)) {
                    Err(failed) if failed.error == Error::TimedOut && !is_last => {}
                    outcome => break outcome.map(drop).map_err(Error::from),
                }
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
        over.store(true, Ordering::SeqCst);
        let outcome = accepting.join().unwrap();
        let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert_eq!(outcome, Err(Error::TimedOut), "a process was accepted");
        result
    })
}

/// Starts a process that listens to `name`, and waits until the name can be found.
fn start_server(role: &str, names: &Names, name: &str) -> Actor {
    let child = command(role, &format!("{} {name}", names.path())).spawn().unwrap();
    let actor = Actor(child);
    wait_until("the server listens", || {
        strait::meet::names(Some(&names.0)).unwrap().iter().any(|there| there.name == name && there.is_live)
    });
    actor
}

#[test]
fn a_client_finds_a_server_by_its_name() {
    let names = Names::new("find");
    let listener = names.listener("service");
    let actor = Actor(command("client", &format!("{} service", names.path())).spawn().unwrap());
    let channel = listener.accept(DEADLINE).unwrap();
    let peer = channel.peer().unwrap().unwrap();
    assert_eq!((peer.pid, peer.uid), (Some(actor.pid()), rustix::process::geteuid().as_raw()));
    echo(&channel);
    finish(actor);
}

/// Shows that a name in the user's own name directory can be used without naming the directory, and what permissions
/// both have.
#[test]
fn names_in_the_directory_of_the_user_need_no_directory() {
    let name = format!("meeting-test-{}", std::process::id());
    let listener = Listener::bind(&name).unwrap();
    assert_eq!(std::fs::metadata(listener.path()).unwrap().permissions().mode() & 0o777, 0o600);
    let directory = listener.path().parent().unwrap();
    assert_eq!(std::fs::metadata(directory).unwrap().permissions().mode() & 0o777, 0o700);
    let client = std::thread::spawn({
        let name = name.clone();
        move || connect(&name, DEADLINE).unwrap().send(b"hello").unwrap()
    });
    assert_eq!(listener.accept(DEADLINE).unwrap().recv().unwrap().bytes(), b"hello");
    client.join().unwrap();
    let path = listener.path().to_owned();
    drop(listener);
    assert!(!path.exists(), "the file of a dropped listener's name exists");
    assert_eq!(connect(&name, DEADLINE).err().map(Error::from), Some(Error::NobodyThere));
}

/// Starts a process with the role `role`, with or without the runtime directory of a login session. Returns the process
/// and a channel.
fn in_session(runtime: Option<&Path>, role: &str, argument: &str) -> (Actor, Channel) {
    let mut command = command(role, argument);
    command.env_remove("STRAIT_DIR").env_remove("XDG_RUNTIME_DIR");
    if let Some(runtime) = runtime {
        command.env("XDG_RUNTIME_DIR", runtime);
    }
    let (child, channel) = command.spawn_with_channel().unwrap();
    (Actor(child), channel)
}

/// Listens under a name in this user's directories, reports the outcome to the parent, and answers one client.
fn binds(name: &str) {
    let parent = strait::from_parent().unwrap();
    let listener = Listener::bind(name);
    let outcome = listener.as_ref().map_or_else(|failed| format!("{:?}", failed.error), |_| "listens".to_owned());
    parent.send(outcome.as_bytes()).unwrap();
    if let Ok(listener) = listener {
        echo(&listener.accept(DEADLINE).unwrap());
    }
}

/// Tries to listen under a name that is taken, and reports the text of the error to the parent.
fn is_refused(name: &str) {
    let parent = strait::from_parent().unwrap();
    parent.send(Listener::bind(name).unwrap_err().to_string().as_bytes()).unwrap();
}

/// Connects to a name in this user's directories, once the name is taken, and reports the answer to the parent.
fn calls(name: &str) {
    let parent = strait::from_parent().unwrap();
    let channel = Connector::new().wait_for_listener().connect(name, DEADLINE).unwrap();
    channel.send(b"hello").unwrap();
    parent.send(channel.recv_by(DEADLINE).unwrap().bytes()).unwrap();
}

/// Returns the next message of a process, as text.
fn told(channel: &Channel) -> String {
    String::from_utf8(channel.recv_by(DEADLINE).unwrap().bytes().to_vec()).unwrap()
}

/// Shows that processes with and without a login session share their names: each name has one listener, found by
/// clients of both kinds.
#[test]
fn a_login_session_that_begins_or_ends_changes_no_name() {
    let session = Names::new("session");
    let name = format!("session-test-{}", std::process::id());
    for (first, second) in [(None, Some(&*session.0)), (Some(&*session.0), None)] {
        let (server, outcome) = in_session(first, "binds", &name);
        assert_eq!(told(&outcome), "listens", "{first:?}");
        let (other, outcome) = in_session(second, "binds", &name);
        assert_eq!(told(&outcome), "NameTaken", "{second:?}");
        finish(other);
        let (client, answer) = in_session(second, "calls", &name);
        assert_eq!(told(&answer), "hello");
        finish(client);
        finish(server);
    }
}

/// Shows that the names of a killed listener keep neither a client nor the next listener out, in no directory.
#[test]
fn a_killed_listener_leaves_its_names_in_all_directories_to_the_next() {
    let session = Names::new("killed");
    let name = format!("killed-test-{}", std::process::id());
    let (mut killed, outcome) = in_session(Some(&session.0), "binds", &name);
    assert_eq!(told(&outcome), "listens");
    killed.kill();
    let left_behind = session.0.join("strait").join(&name);
    assert!(left_behind.exists());
    let (server, outcome) = in_session(None, "binds", &name);
    assert_eq!(told(&outcome), "listens");
    assert!(left_behind.exists(), "a listener without the session cannot know its directory");
    let (client, answer) = in_session(Some(&session.0), "calls", &name);
    assert_eq!(told(&answer), "hello");
    finish(client);
    finish(server);
    let (again, outcome) = in_session(Some(&session.0), "binds", &name);
    assert_eq!(told(&outcome), "listens");
    let (client, answer) = in_session(Some(&session.0), "calls", &name);
    assert_eq!(told(&answer), "hello");
    finish(client);
    finish(again);
}

/// Shows that a directory possibly made by another user keeps nobody from meeting in the next directory.
#[test]
fn a_directory_that_is_not_to_be_trusted_is_passed_over() {
    let session = Names::new("passed-over");
    symlink("/tmp", session.0.join("strait")).unwrap();
    let name = format!("passed-over-test-{}", std::process::id());
    let (server, outcome) = in_session(Some(&session.0), "binds", &name);
    assert_eq!(told(&outcome), "listens");
    let (refused, outcome) = in_session(Some(&session.0), "is refused", &name);
    let outcome = told(&outcome);
    let passed_over = format!("; passed over {}: it is a link", session.0.join("strait").display());
    assert!(outcome.contains("the name is taken") && outcome.contains(&passed_over), "{outcome}");
    finish(refused);
    let (client, answer) = in_session(Some(&session.0), "calls", &name);
    assert_eq!(told(&answer), "hello");
    finish(client);
    finish(server);
}

/// Shows that a client sleeps until its server is there, and fails at the deadline without a server.
#[test]
fn a_client_can_wait_for_its_server() {
    let session = Names::new("waits");
    let name = format!("waits-test-{}", std::process::id());
    let (client, answer) = in_session(Some(&session.0), "calls", &name);
    wait_until("the client watches the directories", || watches(client.pid()));
    let (server, outcome) = in_session(None, "binds", &name);
    assert_eq!(told(&outcome), "listens");
    assert_eq!(told(&answer), "hello");
    finish(client);
    finish(server);
    let names = Names::new("waits-in-vain");
    let failed = names.connector().wait_for_listener().connect("nobody", Duration::from_millis(20)).unwrap_err();
    assert_eq!(failed.error, Error::NobodyThere);
    assert_eq!(names.connector().wait_for_listener().connect("nobody", Deadline::NOW).unwrap_err(), failed);
}

/// Sets the kernel's limit `name` for the user namespace of this process.
fn limit_watches(name: &str, limit: u32) {
    std::fs::write(format!("/proc/sys/user/{name}"), limit.to_string()).unwrap();
}

/// Connects in `directory` while this process's user has no inotify instance left, and then no watch.
fn without_watches(directory: &str) {
    let connector = || Connector::new().directory(directory).wait_for_listener();
    for (limit, call, code) in [
        (
            "max_inotify_instances",
            "inotify_init1 (limits: open files, and sysctl fs.inotify.max_user_instances)",
            libc::EMFILE,
        ),
        ("max_inotify_watches", "inotify_add_watch (limit: sysctl fs.inotify.max_user_watches)", libc::ENOSPC),
    ] {
        limit_watches(limit, 0);
        let failed = connector().connect("late", DEADLINE).unwrap_err();
        assert_eq!(failed.error, Error::System { call, code });
        assert!(failed.to_string().contains(call) && failed.name.as_deref() == Some("late"), "{failed}");
        // Nobody waits for a listener that is there, nor does a listener for its clients, by a watch.
        let listener = Listener::builder().directory(directory).bind("there").unwrap();
        let client = std::thread::spawn({
            let connector = connector();
            move || connector.connect("there", DEADLINE).unwrap().send(b"hello").unwrap()
        });
        assert_eq!(listener.accept(DEADLINE).unwrap().recv_by(DEADLINE).unwrap().bytes(), b"hello");
        client.join().unwrap();
        limit_watches(limit, 100);
    }
    let client = std::thread::spawn({
        let connector = connector();
        move || connector.connect("late", DEADLINE).unwrap().send(b"hello").unwrap()
    });
    wait_until("the client watches the directory", || watches(std::process::id()));
    let listener = Listener::builder().directory(directory).bind("late").unwrap();
    assert_eq!(listener.accept(DEADLINE).unwrap().recv_by(DEADLINE).unwrap().bytes(), b"hello");
    client.join().unwrap();
}

/// Shows that a wait for a missing listener fails at once, with the limit to raise, if this user's inotify instances or
/// watches are used up; that all else works without an instance; and that the wait works once the limit is raised.
#[test]
fn without_inotify_the_wait_for_a_listener_names_the_limit() {
    let unshare = |words: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user"]).args(words).stdout(Stdio::null());
        unshare
    };
    // The limits are those of a user namespace of the test: others go on with theirs.
    let allowed = unshare(&["test", "-w", "/proc/sys/user/max_inotify_instances"]).stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return println!("left out: no user namespace with limits of its own can be made");
    }
    let names = Names::new("unwatched");
    let inner = command("without watches", names.path());
    let mut wrapped = unshare(&[]);
    wrapped.arg(inner.get_program()).args(inner.get_args());
    wrapped.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    finish(Actor(wrapped.spawn().unwrap()));
}

/// Shows that an absolute path is a name in the directory that the path says, for listeners and clients, and that the
/// rules for such a directory hold.
#[test]
fn an_absolute_path_is_a_name_in_its_directory() {
    let names = Names::new("absolute");
    let path = names.0.join("service").to_str().unwrap().to_owned();
    let failed = connect(&path, DEADLINE).unwrap_err();
    assert_eq!((failed.error, failed.path.as_deref()), (Error::NobodyThere, Some(Path::new(&path))));
    let (client, answer) = in_session(None, "calls", &path);
    let listener = Listener::bind(&path).unwrap();
    assert_eq!(listener.path(), Path::new(&path));
    assert_eq!(names.all(), ["service"]);
    assert_eq!(Listener::bind(&path).unwrap_err().error, Error::NameTaken);
    echo(&listener.accept(DEADLINE).unwrap());
    assert_eq!(told(&answer), "hello");
    finish(client);
    // A directory given in another way does not count.
    let client = std::thread::spawn({
        let path = path.clone();
        move || Connector::new().directory("/nowhere").connect(&path, DEADLINE).unwrap().send(b"hello").unwrap()
    });
    assert_eq!(listener.accept(DEADLINE).unwrap().recv().unwrap().bytes(), b"hello");
    client.join().unwrap();
    // Every user can write to the directory.
    assert!(matches!(Listener::bind("/tmp/strait-absolute").unwrap_err().error, Error::UnsafeDirectory(_)));
    for bad in ["/", "/tmp/..", "service/name", "./service"] {
        assert_eq!(Listener::bind(bad).unwrap_err().error, Error::BadName, "{bad}");
        assert_eq!(connect(bad, DEADLINE).unwrap_err().error, Error::BadName, "{bad}");
    }
}

/// Returns whether the process has made a watch of directories.
fn watches(pid: u32) -> bool {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.into_iter().any(|link| link.to_string_lossy().contains("inotify"))
}

/// Shows that the names of dead listeners, and only those, are removed on request and by the next listener of the user.
#[test]
fn names_of_dead_listeners_are_pruned() {
    let names = Names::new("pruned");
    std::fs::set_permissions(&names.0, std::fs::Permissions::from_mode(0o700)).unwrap();
    let dies = |name| {
        let mut killed = start_server("server until killed", &names, name);
        killed.kill();
    };
    let live = names.listener("live");
    std::fs::write(names.0.join("a-file"), b"").unwrap();
    dies("dead");
    assert_eq!(names.all(), ["a-file", "dead", "live"]);
    assert_eq!(strait::meet::prune(Some(&names.0)).unwrap(), ["dead"]);
    assert_eq!(names.all(), ["a-file", "live"]);
    dies("dead");
    let mut next = command("binds", "next");
    let (next, outcome) = next.env("STRAIT_DIR", &names.0).spawn_with_channel().unwrap();
    assert_eq!(told(&outcome), "listens");
    assert_eq!(names.all(), ["a-file", "live", "next"]);
    drop(Actor(next));
    drop(live);
}

#[test]
fn many_clients_at_once_all_get_in() {
    let names = Names::new("many");
    let listener = names.listener("service");
    std::thread::scope(|scope| {
        for number in 0..100u32 {
            let connector = names.connector();
            scope.spawn(move || {
                let channel = connector.connect("service", DEADLINE).unwrap();
                channel.send(&number.to_le_bytes()).unwrap();
                assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), number.to_le_bytes());
            });
        }
        // Two threads accept in turn.
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let channel = listener.accept(DEADLINE).unwrap();
                    let message = channel.recv_by(DEADLINE).unwrap();
                    channel.send(message.bytes()).unwrap();
                }
            });
        }
    });
}

/// Shows that a name with a listener cannot be bound, and that the name of a dead process can.
#[test]
fn a_live_name_is_taken_and_a_dead_one_is_taken_over() {
    let names = Names::new("takeover");
    let mut server = start_server("server until killed", &names, "service");
    let bind = || Listener::builder().directory(&names.0).bind("service");
    assert_eq!(bind().err().map(Error::from), Some(Error::NameTaken));
    let there = strait::meet::names(Some(&names.0)).unwrap();
    assert_eq!((there[0].name.as_str(), there[0].pid, there[0].is_live), ("service", Some(server.pid()), true));
    assert!(there[0].since.elapsed().unwrap() < 10 * DEADLINE);

    server.kill();
    assert!(!strait::meet::names(Some(&names.0)).unwrap()[0].is_live);
    assert_eq!(names.connector().connect("service", SOON).err().map(Error::from), Some(Error::NobodyThere));
    let listener = bind().unwrap();
    assert_eq!(bind().err().map(Error::from), Some(Error::NameTaken));
    // If another listener has taken the name over, dropping the old listener does not remove the name.
    drop(listener);
    assert!(bind().is_ok());
}

/// Shows that a process without enough descriptors gets `NoDescriptors`, and not a wrong answer about the name of a
/// dead process. Runs in a process of its own, because the test counts descriptors.
#[test]
fn who_lacks_descriptors_is_told_so_and_not_that_a_dead_name_is_taken() {
    alone("short of descriptors", "");
}

fn short_of_descriptors(_: &str) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let names = Names::new("short");
    start_server("server until killed", &names, "service").kill();
    let plenty = getrlimit(Resource::Nofile);
    let lowest = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let with_free = |free: u64| setrlimit(Resource::Nofile, Rlimit { current: Some(lowest + free), ..plenty }).unwrap();
    for free in 0..4 {
        with_free(free);
        let there = strait::meet::names(Some(&names.0));
        let bound = Listener::builder().directory(&names.0).bind("service");
        setrlimit(Resource::Nofile, plenty).unwrap();
        match there {
            Ok(there) => assert!(!there[0].is_live, "with {free} free descriptors"),
            Err(error) => assert_eq!(error.error, Error::NoDescriptors, "with {free} free descriptors"),
        }
        match bound {
            Ok(_) => panic!("a listener takes more than {free} descriptors"),
            Err(error) => assert_eq!(error.error, Error::NoDescriptors, "with {free} free descriptors"),
        }
    }
    assert!(Listener::builder().directory(&names.0).bind("service").is_ok());
}

/// Shows that a listener without free descriptors loses no process that connects: each is accepted once there are
/// descriptors. Runs in a process of its own, because the test limits descriptors.
#[test]
fn who_connects_while_descriptors_lack_is_accepted_later() {
    alone("accepts without descriptors", "");
}

/// Connects as `client` does. Creates the file of the argument's third part before.
fn announced_client(argument: &str) {
    let (argument, file) = argument.rsplit_once(' ').unwrap();
    std::fs::write(file, "").unwrap();
    client(argument);
}

fn accepts_without_descriptors(_: &str) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const CLIENTS: usize = 6;
    let names = Names::new("lacking");
    let listener = names.listener("service");
    let invitation = listener.invite(DEADLINE).unwrap();
    let mut actors = vec![Actor(invitation.spawn(&mut command("invited", "")).unwrap())];
    for number in 0..CLIENTS {
        let file = names.0.join(format!("begun-{number}"));
        let argument = format!("{} service {}", names.path(), file.to_str().unwrap());
        actors.push(Actor(command("announced client", &argument).spawn().unwrap()));
        wait_until("the client began", || file.exists());
    }
    let plenty = getrlimit(Resource::Nofile);
    let (mut accepted, mut lacking) = (Vec::new(), 0);
    let begin = std::time::Instant::now();
    // At each number of free descriptors, the listener has looked at what has come by then.
    for free in (0..8).cycle() {
        let lowest = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
        setrlimit(Resource::Nofile, Rlimit { current: Some(lowest + free), ..plenty }).unwrap();
        let results = [listener.accept(SOON / 100), invitation.accept(Deadline::NOW)];
        setrlimit(Resource::Nofile, plenty).unwrap();
        for result in results {
            match result {
                Ok(channel) => accepted.push(channel),
                Err(failed) => match failed.error {
                    Error::NoDescriptors => lacking += 1,
                    Error::WouldBlock | Error::TimedOut => {}
                    // The invitation is used up.
                    other => panic!("{other:?}"),
                },
            }
        }
        if accepted.len() == CLIENTS + 1 {
            break;
        }
        assert!(begin.elapsed() < DEADLINE, "{} of {} were accepted", accepted.len(), CLIENTS + 1);
    }
    assert!(lacking > 0);
    for channel in &accepted {
        let message = channel.recv_by(DEADLINE).unwrap();
        channel.send_by(message.bytes(), DEADLINE).unwrap();
    }
    drop(actors[0].0.stdin.take());
    actors.into_iter().for_each(finish);
}

/// Shows that if several threads bind the name of a dead process, exactly one succeeds.
#[test]
fn of_many_that_take_over_a_name_one_has_it() {
    let names = Names::new("race");
    for _ in 0..20 {
        start_server("server until killed", &names, "service").kill();
        let bound: Vec<_> = std::thread::scope(|scope| {
            let binders: Vec<_> =
                (0..8).map(|_| scope.spawn(|| Listener::builder().directory(&names.0).bind("service"))).collect();
            binders.into_iter().map(|binder| binder.join().unwrap()).collect()
        });
        assert_eq!(bound.iter().filter(|bound| bound.is_ok()).count(), 1, "{bound:?}");
        assert!(
            bound.iter().all(|bound| bound.as_ref().err().is_none_or(|failed| failed.error == Error::NameTaken)),
            "{bound:?}"
        );
    }
}

/// Listens to a name, given as "directory name", if the name is free, reports whether it was, and ends when it is told
/// to.
fn tries_to_listen(argument: &str) {
    let parent = common::parent();
    let (directory, name) = argument.split_once(' ').unwrap();
    parent.send(b"ready").unwrap();
    parent.recv_by(DEADLINE).unwrap();
    let bound = Listener::builder().directory(directory).bind(name);
    let said: &[u8] = match &bound {
        Ok(_) => b"listens",
        Err(failed) if failed.error == Error::NameTaken => b"taken",
        Err(error) => panic!("{error}"),
    };
    parent.send(said).unwrap();
    parent.recv_by(DEADLINE).unwrap();
}

#[test]
fn of_processes_that_listen_at_once_exactly_one_has_the_name() {
    let names = Names::new("processes");
    for _ in 0..5 {
        start_server("server until killed", &names, "service").kill();
        let argument = format!("{} service", names.path());
        let actors: Vec<_> =
            (0..6).map(|_| common::spawn_with("tries to listen", &argument, &Options::new())).collect();
        for (_, channel) in &actors {
            assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"ready");
        }
        actors.iter().for_each(|(_, channel)| channel.send(b"go").unwrap());
        let said: Vec<_> =
            actors.iter().map(|(_, channel)| channel.recv_by(DEADLINE).unwrap().bytes().to_vec()).collect();
        assert_eq!(said.iter().filter(|said| *said == b"listens").count(), 1, "{said:?}");
        assert_eq!(names.all(), ["service"]);
        for (actor, channel) in actors {
            channel.send(b"end").unwrap();
            finish(actor);
        }
        assert_eq!(names.all(), [""; 0]);
    }
}

/// Locks the directory and every file in it that can be opened; as another user, if the test runs as root.
fn holds_locks(directory: &str) {
    let parent = common::parent();
    if is_root() {
        // SAFETY: plain system calls.
        assert!(unsafe { libc::setgid(65534) == 0 && libc::setuid(65534) == 0 });
    }
    let within = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let all: Vec<_> = [PathBuf::from(directory)].into_iter().chain(within).collect();
    let held: Vec<_> = all.into_iter().filter_map(|path| std::fs::File::open(path).ok()).collect();
    for file in &held {
        rustix::fs::flock(file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    }
    assert!(!held.is_empty(), "no file of the directory can be opened");
    parent.send(b"held").unwrap();
    let _ = parent.recv();
}

/// Shows that another user's locks on the directory and its files do not delay listeners.
#[test]
fn another_user_who_locks_the_directory_holds_up_nobody() {
    let names = Names::new("locked");
    let first = names.listener("first");
    let (_actor, channel) = common::spawn_with("holds locks", names.path(), &Options::new());
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"held");
    let second = names.listener("second");
    assert_eq!(names.all(), ["first", "second"]);
    drop(first);
    assert_eq!(names.all(), ["second"]);
    start_server("server until killed", &names, "third").kill();
    let third = names.listener("third");
    drop((second, third));
    assert_eq!(names.all(), [""; 0]);
}

/// Holds the lock for taking a name, given as "directory name".
fn holds_the_lock_of_a_name(argument: &str) {
    let parent = common::parent();
    let (directory, name) = argument.split_once(' ').unwrap();
    let path = Path::new(directory).join(format!(".{name}.lock"));
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    parent.send(b"held").unwrap();
    let _ = parent.recv();
}

/// Shows that no call waits for a process that is taking the name of a dead listener, and may be stopped: neither a
/// call that removes the names of dead listeners, nor a bind of another name.
#[test]
fn a_process_that_takes_the_name_of_a_dead_listener_holds_up_nobody() {
    let names = Names::new("taken-over");
    std::fs::set_permissions(&names.0, std::fs::Permissions::from_mode(0o700)).unwrap();
    start_server("server until killed", &names, "dead").kill();
    let argument = format!("{} dead", names.path());
    let (mut actor, channel) = common::spawn_with("holds the lock of a name", &argument, &Options::new());
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"held");
    let (done, pruned) = mpsc::channel();
    let directory = names.0.clone();
    std::thread::spawn(move || {
        let removed = strait::meet::prune(Some(&directory));
        let bound = Listener::builder().directory(&directory).bind("other");
        done.send((removed, bound)).unwrap();
    });
    let (removed, bound) = pruned.recv_timeout(DEADLINE).expect("the calls wait for the process with the lock");
    assert_eq!(removed.unwrap(), [""; 0]);
    drop(bound.unwrap());
    assert_eq!(names.all(), [".dead.lock", "dead"]);
    actor.kill();
    assert_eq!(strait::meet::prune(Some(&names.0)).unwrap(), ["dead"]);
    assert_eq!(names.all(), [""; 0]);
}

/// Shows that the death of a process that holds the lock of a name lets another process bind the name.
#[test]
fn a_process_that_ends_while_it_takes_a_name_leaves_it_to_others() {
    let names = Names::new("ended");
    let argument = format!("{} service", names.path());
    let (mut actor, channel) = common::spawn_with("holds the lock of a name", &argument, &Options::new());
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"held");
    // A listener of another name is not held up.
    let other = names.listener("other");
    let watched = common::Watched::new();
    let listener = std::thread::scope(|scope| {
        let binding = scope.spawn(|| {
            watched.enter();
            names.listener("service")
        });
        watched.wait_until_blocked();
        assert!(!binding.is_finished(), "the bind did not wait for the lock of the name");
        actor.kill();
        binding.join().unwrap()
    });
    assert_eq!(names.all(), ["other", "service"]);
    drop((other, listener));
    assert_eq!(names.all(), [""; 0]);
}

/// Shows that a file that is not the socket of a dead listener is not replaced.
#[test]
fn what_is_no_socket_of_ours_is_not_replaced() {
    let names = Names::new("foreign");
    let path = |name: &str| names.0.join(name);
    std::fs::write(path("file"), b"precious").unwrap();
    std::fs::create_dir(path("directory")).unwrap();
    symlink("/nowhere", path("link")).unwrap();
    let _stream = std::os::unix::net::UnixListener::bind(path("stream")).unwrap();
    for name in ["file", "directory", "link", "stream"] {
        assert_eq!(
            Listener::builder().directory(&names.0).bind(name).err().map(Error::from),
            Some(Error::NameTaken),
            "{name}"
        );
    }
    assert_eq!(std::fs::read(path("file")).unwrap(), b"precious");
    for name in ["file", "directory", "link"] {
        assert_eq!(names.connector().connect(name, SOON).err().map(Error::from), Some(Error::NobodyThere), "{name}");
    }
}

#[test]
fn a_link_to_another_listener_is_not_followed() {
    let names = Names::new("symlink");
    let listener = names.listener("real");
    symlink(listener.path(), names.0.join("alias")).unwrap();
    assert_eq!(names.connector().connect("alias", SOON).err().map(Error::from), Some(Error::NobodyThere));
}

#[test]
fn directories_that_others_could_change_are_refused() {
    let names = Names::new("directory");
    let inner = names.0.join("inner");
    std::fs::create_dir(&inner).unwrap();
    let check = |path: &Path| {
        let bind = Listener::builder().directory(path).bind("service").err().map(Error::from);
        let connect = Connector::new().directory(path).connect("service", SOON).err().map(Error::from);
        assert_eq!(bind, connect, "{}", path.display());
        bind
    };
    for mode in [0o777, 0o775, 0o757, 0o1777] {
        std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(check(&inner), Some(Error::UnsafeDirectory(_))), "{mode:o}");
    }
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o700)).unwrap();
    let alias = names.0.join("alias");
    symlink(&inner, &alias).unwrap();
    assert!(matches!(check(&alias), Some(Error::UnsafeDirectory(_))));
    if is_root() {
        std::os::unix::fs::chown(&inner, Some(65534), None).unwrap();
        assert!(matches!(check(&inner), Some(Error::UnsafeDirectory(_))));
    }
}

/// Makes the user's only name directory in ways possible for another user, and asserts that each is refused; then
/// listens.
fn squatter(base: &str) {
    let directory = Path::new(base).join("strait");
    let refused = || {
        assert!(matches!(Listener::bind("service").err().map(Error::from), Some(Error::UnsafeDirectory(_))));
        assert!(matches!(connect("service", DEADLINE).err().map(Error::from), Some(Error::UnsafeDirectory(_))));
        assert!(matches!(strait::meet::names(None).err().map(Error::from), Some(Error::UnsafeDirectory(_))));
    };
    symlink("/tmp", &directory).unwrap();
    refused();
    std::fs::remove_file(&directory).unwrap();
    std::fs::write(&directory, b"").unwrap();
    refused();
    std::fs::remove_file(&directory).unwrap();
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    refused();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    Listener::bind("service").unwrap();
    if is_root() {
        std::os::unix::fs::chown(&directory, Some(65534), None).unwrap();
        refused();
    }
}

#[test]
fn a_directory_that_somebody_else_made_first_is_refused() {
    let names = Names::new("squatter");
    let only = names.0.join("strait");
    finish(Actor(command("squatter", names.path()).env("STRAIT_DIR", only).spawn().unwrap()));
}

/// Listens to a name without a directory for it, and without `/proc`, and checks the errors.
fn without_what_it_takes(base: &str) {
    let missing = Listener::bind("service").unwrap_err();
    assert!(missing.to_string().contains("STRAIT_DIR"), "{missing}");
    let missing = Listener::builder().directory(format!("{base}/none")).bind("service").unwrap_err();
    assert!(missing.to_string().contains("not there"), "{missing}");
    // SAFETY: plain system calls, on the mounts of this process alone.
    let gone = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                std::ptr::null(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
            && libc::umount2(c"/proc".as_ptr(), libc::MNT_DETACH) == 0
    };
    if gone {
        let missing = Listener::builder().directory(base).bind("service").unwrap_err();
        assert_eq!(missing.error, Error::System { call: "bind through /proc", code: libc::ENOENT });
    } else {
        println!("left out: it takes rights to have no /proc");
    }
}

/// Shows that the error of a bind names the missing directory, variable or `/proc`.
#[test]
fn what_is_missing_for_a_name_is_said() {
    let names = Names::new("missing");
    let only = names.0.join("nowhere/strait");
    let command = command("without what it takes", names.path()).env("STRAIT_DIR", only).spawn();
    finish(Actor(command.unwrap()));
    assert_eq!(names.all(), [""; 0]);
}

/// Connects as another user to a name, given as "directory name".
fn client_as_nobody(argument: &str) {
    // SAFETY: plain system calls.
    assert!(unsafe { libc::setgid(65534) == 0 && libc::setuid(65534) == 0 });
    let (directory, name) = argument.split_once(' ').unwrap();
    let connector = Connector::new().directory(directory).server(0);
    match name {
        "open" => {
            let channel = connector.connect(name, DEADLINE).unwrap();
            assert_eq!(channel.peer().unwrap().unwrap().uid, 0);
            channel.send(b"nobody").unwrap();
        }
        _ => {
            assert_eq!(connector.connect(name, DEADLINE).err().map(Error::from), Some(Error::Refused(Refusal::Policy)))
        }
    }
}

/// Listens as another user to a name, given as "directory name".
fn server_as_nobody(argument: &str) {
    // SAFETY: a plain system call.
    assert!(unsafe { libc::setuid(65534) == 0 });
    server_until_killed(argument);
}

/// Shows that a connector refuses a directory or a server of another user than expected.
#[test]
fn a_server_of_another_user_is_not_talked_to() {
    if !is_root() {
        return;
    }
    let names = Names::new("impostor");
    std::os::unix::fs::chown(&names.0, Some(65534), None).unwrap();
    let _server = Actor(command("server as nobody", &format!("{} service", names.path())).spawn().unwrap());
    let connect = || names.connector().server(65533).connect("service", SOON).err().map(Error::from);
    wait_until("the server listens", || names.0.join("service").exists());
    assert!(matches!(connect(), Some(Error::UnsafeDirectory(_))));
    std::os::unix::fs::chown(&names.0, Some(0), None).unwrap();
    assert_eq!(connect(), Some(Error::WrongServer { uid: 65534 }));
}

/// Shows that a process of another user is accepted only with the permission of the listener's policy.
#[test]
fn other_users_are_let_in_only_by_a_policy() {
    if !is_root() {
        return;
    }
    let names = Names::new("users");
    let (told, refusals) = mpsc::channel();
    let closed = Listener::builder()
        .directory(&names.0)
        .mode(0o666)
        .on_refused(move |refused| told.send(*refused).unwrap())
        .bind("closed")
        .unwrap();
    let open =
        Listener::builder().directory(&names.0).mode(0o666).policy(|peer| peer.uid == 65534).bind("open").unwrap();
    let start = |name| Actor(command("client as nobody", &format!("{} {name}", names.path())).spawn().unwrap());

    let actor = start("closed");
    let pid = actor.pid();
    while_nobody_is_let_in(
        |patience| closed.accept(patience),
        || {
            let refused: Refused = refusals.recv_timeout(DEADLINE).unwrap();
            let peer = refused.peer.unwrap();
            assert_eq!((peer.pid, peer.uid, refused.why), (Some(pid), 65534, Error::Refused(Refusal::Policy)));
            finish(actor);
        },
    );

    let actor = start("open");
    let channel = open.accept(DEADLINE).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"nobody");
    assert_eq!(channel.peer().unwrap().unwrap().uid, 65534);
    finish(actor);
}

/// Connects by the invitation on standard input.
fn was_invited(argument: &str) {
    let channel = invited(DEADLINE);
    match argument {
        "" => {
            let channel = channel.unwrap();
            channel.send(b"here I am").unwrap();
            // The rest of the standard input is for the program.
            let mut rest = String::new();
            std::io::Read::read_to_string(&mut std::io::stdin(), &mut rest).unwrap();
            channel.send(rest.as_bytes()).unwrap();
        }
        _ => assert_eq!(channel.err().map(Error::from), Some(Error::Refused(Refusal::Token))),
    }
}

fn invite_only(names: &Names) -> (Listener, mpsc::Receiver<Refused>) {
    let (told, refusals) = mpsc::channel();
    let tell = move |refused: &Refused| {
        // The test may have dropped the receiver already.
        let _ = told.send(*refused);
    };
    let builder = Listener::builder().directory(&names.0).invited_only().on_refused(tell);
    (builder.bind("service").unwrap(), refusals)
}

/// Shows that a child can connect by an invitation on standard input, and read the rest of the input.
#[test]
fn a_child_comes_by_invitation() {
    let names = Names::new("invitation");
    let (listener, refusals) = invite_only(&names);
    let invitation = listener.invite(DEADLINE).unwrap();
    let mut actor = Actor(invitation.spawn(&mut command("invited", "")).unwrap());
    let channel = invitation.accept(DEADLINE).unwrap();
    assert_eq!(channel.peer().unwrap().unwrap().pid, Some(actor.pid()));
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"here I am");
    let mut stdin = actor.0.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"the rest").unwrap();
    drop(stdin);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"the rest");
    finish(actor);
    assert!(refusals.try_recv().is_err());
}

/// Invites a process with another working directory to a listener in `directory`, a relative path.
fn invites_from_a_relative_directory(directory: &str) {
    let listener = Listener::builder().directory(directory).invited_only().bind("service").unwrap();
    assert_eq!(listener.path(), std::env::current_dir().unwrap().join(directory).join("service"));
    let invitation = listener.invite(DEADLINE).unwrap();
    let mut actor = Actor(invitation.spawn(command("invited", "").current_dir("/")).unwrap());
    let channel = invitation.accept(DEADLINE).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"here I am");
    drop(actor.0.stdin.take());
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"");
    finish(actor);
}

#[test]
fn a_listener_in_a_relative_directory_can_invite() {
    let names = Names::new("relative");
    let directory = names.0.file_name().unwrap().to_str().unwrap();
    let mut inviter = command("invites from a relative directory", directory);
    finish(Actor(inviter.current_dir(names.0.parent().unwrap()).spawn().unwrap()));
}

/// Shows that `invite` fails if the path of the listener does not fit in the line of an invitation.
#[test]
fn a_listener_that_no_line_can_name_cannot_invite() {
    let names = Names::new("two-lines");
    let directory = names.0.join("two\nlines");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    let listener = Listener::builder().directory(&directory).bind("service").unwrap();
    let failed = listener.invite(DEADLINE).unwrap_err();
    assert_eq!(failed.error, Error::BadName);
    let text = failed.to_string();
    assert!(text.contains("the invited process cannot find this listener"), "{text}");
}

/// Reads the line of an invitation from its standard input, and connects with it `times` times, each time from a new
/// process.
fn intruder(times: &str) {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    for time in 0..times.parse().unwrap() {
        let mut child =
            command("invited", if time == 0 { "" } else { "refused" }).stdin(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), line.as_bytes()).unwrap();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_token_lets_one_process_in_once() {
    let names = Names::new("once");
    let (listener, refusals) = invite_only(&names);
    let invitation = listener.invite(DEADLINE).unwrap();
    let actor = Actor(invitation.spawn(&mut command("intruder", "3")).unwrap());
    let channel = invitation.accept(DEADLINE).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"here I am");
    while_nobody_is_let_in(
        |patience| invitation.accept(patience),
        || {
            for _ in 0..2 {
                assert_eq!(refusals.recv_timeout(DEADLINE).unwrap().why, Error::Refused(Refusal::Token));
            }
            finish(actor);
        },
    );
}

#[test]
fn a_token_that_is_late_wrong_missing_or_taken_back_is_refused() {
    let names = Names::new("late");
    let (listener, refusals) = invite_only(&names);
    let refuse = |line: &[u8]| {
        let mut child = Actor(command("invited", "refused").stdin(Stdio::piped()).spawn().unwrap());
        std::io::Write::write_all(child.0.stdin.as_mut().unwrap(), line).unwrap();
        while_nobody_is_let_in(
            |patience| listener.accept(patience),
            || {
                assert_eq!(refusals.recv_timeout(DEADLINE).unwrap().why, Error::Refused(Refusal::Token));
                finish(child);
            },
        );
    };
    let line = |valid_for| {
        let mut line = Vec::new();
        let invitation = listener.invite(valid_for).unwrap();
        invitation.tell(&mut line).unwrap();
        (invitation, line)
    };
    let (_late, late) = line(Duration::ZERO);
    refuse(&late);
    let (invitation, taken_back) = line(DEADLINE);
    drop(invitation);
    refuse(&taken_back);
    let (_invitation, mut wrong) = line(DEADLINE);
    let token = wrong.iter().position(|byte| *byte == b'/').unwrap() - 3;
    wrong[token] = if wrong[token] == b'0' { b'1' } else { b'0' };
    refuse(&wrong);

    let connector = names.connector();
    let missing =
        while_nobody_is_let_in(|patience| listener.accept(patience), || connector.connect("service", DEADLINE).err());
    assert_eq!(missing.map(Error::from), Some(Error::Refused(Refusal::Token)));
}

/// Shows that a connection without an invitation waits for `accept` while another thread waits for an invited process.
#[test]
fn others_wait_while_somebody_is_invited() {
    let names = Names::new("others");
    let listener = names.listener("service");
    let invitation = listener.invite(DEADLINE).unwrap();
    let connector = names.connector();
    let other = std::thread::spawn(move || {
        let channel = connector.connect("service", DEADLINE).unwrap();
        channel.send(b"other").unwrap();
        assert_eq!(channel.recv_by(DEADLINE).err(), Some(Error::PeerClosed));
    });
    // The other client connects first; the wait for the invitation handles the connection without accepting it.
    assert_eq!(invitation.accept(Duration::from_millis(200)).unwrap_err().error, Error::TimedOut);
    let actor = Actor(invitation.spawn(&mut command("invited", "")).unwrap());
    let channel = invitation.accept(DEADLINE).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"here I am");
    finish(actor);
    let channel = loop {
        // The descriptor of the listener also becomes readable for a process that has connected and not sent its
        // request yet.
        let mut poll = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut poll, Some(&rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 })), Ok(1));
        match listener.accept(Deadline::NOW) {
            Ok(channel) => break channel,
            Err(failed) => assert_eq!(failed.error, Error::WouldBlock),
        }
    };
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"other");
    drop(channel);
    other.join().unwrap();
    assert_eq!(listener.accept(Deadline::NOW).unwrap_err().error, Error::WouldBlock);
}

/// Returns the processor time used while waiting for `time` in `accept`, which must accept no connection.
fn used_while_waiting(time: Duration, accept: impl FnOnce(Duration) -> Result<Channel, MeetError>) -> Duration {
    let used = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let before = used();
    assert_eq!(accept(time).unwrap_err().error, Error::TimedOut);
    used() - before
}

/// Measures the processor time of waits of a listener that have nothing to do, while a connection is admitted that no
/// `accept` has asked for.
fn waits_beside_admitted(directory: &str) {
    let (says, admitted) = mpsc::channel();
    let policy = move |_: &strait::Peer| says.send(()).is_ok();
    let listener = Listener::builder().directory(directory).policy(policy).bind("service").unwrap();
    let (invitation, other) = (listener.invite(DEADLINE).unwrap(), listener.invite(DEADLINE).unwrap());
    let until_admitted = |accept: &dyn Fn(Duration) -> Result<Channel, MeetError>| {
        while admitted.try_recv().is_err() {
            assert_eq!(accept(Duration::from_millis(50)).unwrap_err().error, Error::TimedOut);
        }
    };
    let time = Duration::from_secs(2);

    // A connection with an invitation is admitted, and its process is killed.
    let mut actor = Actor(invitation.spawn(&mut command("invited then killed", "")).unwrap());
    until_admitted(&|time| listener.accept(time));
    actor.0.kill().unwrap();
    actor.0.wait().unwrap();
    let used = used_while_waiting(time, |time| listener.accept(time));
    assert!(used < time / 4, "the wait used {used:?} of {time:?} for a closed connection with an invitation");

    // A connection without an invitation is admitted, and stays.
    let connector = Connector::new().directory(directory);
    let visitor =
        std::thread::spawn(move || connector.connect("service", DEADLINE).map(|channel| channel.recv_by(DEADLINE)));
    until_admitted(&|time| other.accept(time));
    let used = used_while_waiting(time, |time| other.accept(time));
    assert!(used < time / 4, "the wait used {used:?} of {time:?} for a connection that another call is to return");
    drop(listener.accept(DEADLINE).unwrap());
    assert_eq!(visitor.join().unwrap().unwrap().err(), Some(Error::PeerClosed));
}

/// Connects by the invitation on standard input, and runs until killed.
fn invited_then_killed(_: &str) {
    let channel = invited(DEADLINE);
    std::thread::sleep(2 * DEADLINE);
    drop(channel);
}

/// Shows that a wait for one pending connection sleeps while another connection is admitted, which another call is to
/// return.
#[test]
fn a_wait_for_one_visitor_sleeps_while_another_is_admitted() {
    let names = Names::new("admitted");
    finish(Actor(command("waits beside admitted", names.path()).spawn().unwrap()));
}

/// Shows that a process without a valid invitation on standard input gets `NoInvitation`.
#[test]
fn without_an_invitation_there_is_none() {
    for input in ["", "\n", "something else\n", "strait-invitation 1 0"] {
        let mut child = command("invited", "refused").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("NoInvitation"), "{said}");
    }
}

/// Plays a service that a service manager starts when a process connects.
fn activated(name: &str) {
    let activate = |name: Option<&str>| Listener::builder().activated(name);
    let own = (!name.is_empty()).then_some(name);
    for free in 0..3 {
        let lacking = with_free_descriptors(free, || activate(own)).err().map(Error::from);
        assert_eq!(lacking, Some(Error::NoDescriptors), "with {free} free descriptors");
    }
    assert_eq!(activate(Some("other")).err().map(Error::from), Some(Error::NotActivated));
    let listener = activate(own).unwrap();
    assert_eq!(activate(None).err().map(Error::from), Some(Error::NotActivated), "the listening socket was used twice");
    echo(&listener.accept(DEADLINE).unwrap());
}

/// Runs `act` while this process may open only `free` more descriptors.
fn with_free_descriptors<T>(free: u64, act: impl FnOnce() -> T) -> T {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let plenty = getrlimit(Resource::Nofile);
    let lowest = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest + free), ..plenty }).unwrap();
    let result = act();
    setrlimit(Resource::Nofile, plenty).unwrap();
    result
}

fn takes_parent_without_descriptors(_: &str) {
    let lacking = with_free_descriptors(0, strait::from_parent).unwrap_err();
    assert_eq!(lacking.error, Error::NoDescriptors);
    strait::from_parent().unwrap().send(b"taken").unwrap();
    assert_eq!(strait::from_parent().unwrap_err().error, Error::ParentTaken);
}

/// Shows that a process without free descriptors does not lose the channel to its parent: it can take the channel once
/// it has a descriptor.
#[test]
fn a_channel_to_the_parent_that_cannot_be_taken_is_not_lost() {
    let (actor, channel) = common::spawn("takes parent without descriptors");
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"taken");
    finish(actor);
}

/// Shows that a service takes the socket of its service manager once, also after attempts without free descriptors.
#[test]
fn a_service_manager_hands_over_its_socket() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    let names = Names::new("activation");
    for fd_name in ["", "service-socket"] {
        let listening = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let name = format!("service{}", fd_name.len());
        bind(&listening, &SocketAddrUnix::new(names.0.join(&name)).unwrap()).unwrap();
        listen(&listening, 8).unwrap();
        // The client connects before the service runs.
        let connector = names.connector();
        let client = std::thread::spawn(move || {
            let channel = connector.connect(&name, DEADLINE).unwrap();
            channel.send(b"wake up").unwrap();
            assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"wake up");
        });
        // `LISTEN_PID` is the process id of the service, known before `exec`: a shell sets the variable.
        let service = command("activated", fd_name);
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg("export LISTEN_PID=$$; exec \"$@\"").arg("sh").arg(service.get_program());
        shell.args(service.get_args()).env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", fd_name);
        for (key, value) in service.get_envs() {
            shell.env(key, value.unwrap());
        }
        shell.stdout(Stdio::null());
        let number = listening.as_raw_fd();
        // SAFETY: the closure makes system calls only, which are async-signal-safe.
        unsafe {
            shell.pre_exec(move || common::leave_open(number, 3));
        }
        let actor = Actor(shell.spawn().unwrap());
        client.join().unwrap();
        finish(actor);
        drop(listening);
    }
}

#[test]
fn a_server_that_was_not_activated_is_told_so() {
    assert_eq!(Listener::builder().activated(None).err().map(Error::from), Some(Error::NotActivated));
}

/// Shows that connecting and accepting end at their deadlines. Runs in a process of its own: a pending connection that
/// gave up ends only when all copies of its socket are closed, and a child started by another test holds copies of all
/// sockets until its `exec`.
#[test]
fn deadlines_hold() {
    alone("deadlines", "");
}

fn deadlines(_: &str) {
    let names = Names::new("deadlines");
    let listener = names.listener("service");
    assert_eq!(listener.accept(Deadline::NOW).unwrap_err().error, Error::WouldBlock);
    assert_eq!(listener.accept(Duration::from_millis(10)).unwrap_err().error, Error::TimedOut);
    // No thread accepts.
    assert_eq!(
        names.connector().connect("service", Duration::from_millis(50)).err().map(Error::from),
        Some(Error::TimedOut)
    );
    assert_eq!(names.connector().connect("service", Deadline::NOW).err().map(Error::from), Some(Error::WouldBlock));
    // The connections that gave up do not delay the next connection.
    let connector = names.connector();
    let client = std::thread::spawn(move || connector.connect("service", DEADLINE).unwrap().send(b"patient").unwrap());
    assert_eq!(listener.accept(DEADLINE).unwrap().recv_by(DEADLINE).unwrap().bytes(), b"patient");
    client.join().unwrap();
}

/// Shows that dropping a listener ends the wait of a connecting process.
#[test]
fn a_listener_that_goes_lets_nobody_wait() {
    let names = Names::new("gone");
    let listener = names.listener("service");
    let connector = names.connector();
    let client = std::thread::spawn(move || connector.connect("service", DEADLINE).err());
    let mut poll = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut poll, Some(&rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 })), Ok(1));
    drop(listener);
    let failed = client.join().unwrap().unwrap();
    assert_eq!(failed.error, Error::PeerClosed);
    assert!(failed.to_string().contains("closed the connection before it accepted this process"), "{failed}");
}

/// Shows that dropping a listener gives up its name and ends all waits, even if there are invitations: the wait of a
/// connecting process, of an invited process that no call has accepted yet, and of the threads that accept by
/// invitation.
#[test]
fn a_listener_that_goes_before_its_invitations_lets_nobody_wait() {
    let names = Names::new("gone-invited");
    let listener = names.listener("service");
    let invitations: Vec<_> = (0..3).map(|_| listener.invite(DEADLINE).unwrap()).collect();
    let mut actor = Actor(invitations[0].spawn(&mut command("invited in vain", "")).unwrap());
    let connector = names.connector();
    let client = std::thread::spawn(move || connector.connect("service", DEADLINE).err().map(Error::from));
    // The wait handles both connections, if they have come, without returning a channel.
    assert_eq!(invitations[1].accept(Duration::from_millis(100)).unwrap_err().error, Error::TimedOut);
    let (says, waits) = mpsc::channel();
    std::thread::scope(|scope| {
        let wait = |invitation| {
            let says = says.clone();
            move || {
                says.send(()).unwrap();
                let invitation: &strait::meet::Invitation = invitation;
                invitation.accept(DEADLINE).unwrap_err()
            }
        };
        let threads: Vec<_> = invitations[1..].iter().map(|invitation| scope.spawn(wait(invitation))).collect();
        threads.iter().for_each(|_| waits.recv().unwrap());
        let path = listener.path().to_owned();
        drop(listener);
        assert!(!path.exists(), "the file of a dropped listener's name exists");
        names.listener("service");
        for thread in threads {
            let failed = thread.join().unwrap();
            assert_eq!(failed.error, Error::PeerClosed);
            assert!(failed.to_string().contains("or the listener was dropped"), "{failed}");
        }
    });
    assert_eq!(invitations[0].accept(Deadline::NOW).unwrap_err().error, Error::PeerClosed);
    assert!(actor.0.wait().unwrap().success());
    let failed = client.join().unwrap();
    assert!(matches!(failed, Some(Error::PeerClosed | Error::NobodyThere)), "{failed:?}");
}

/// Connects by the invitation on standard input to a listener that goes meanwhile.
fn invited_in_vain(_: &str) {
    let failed = invited(DEADLINE).err().map(Error::from);
    assert!(matches!(failed, Some(Error::PeerClosed | Error::NobodyThere)), "{failed:?}");
}

/// Connects as another user again and again to a name, given as "directory name", and sends nothing.
fn crowd(argument: &str) {
    // SAFETY: a plain system call.
    assert!(unsafe { libc::setuid(65534) == 0 });
    let (directory, name) = argument.split_once(' ').unwrap();
    let address = rustix::net::SocketAddrUnix::new(Path::new(directory).join(name)).unwrap();
    let mut sockets = std::collections::VecDeque::new();
    for _ in 0..10_000 {
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        sockets.push_back(socket);
        if sockets.len() > 500 {
            sockets.pop_front();
        }
    }
    std::thread::sleep(2 * DEADLINE);
}

/// Shows that many silent connections do not keep other processes out. Runs in a process of its own, where no other
/// test opens descriptors.
#[test]
fn those_who_never_knock_keep_nobody_out() {
    if is_root() {
        alone("beside a crowd", "");
    }
}

fn beside_a_crowd(_: &str) {
    let names = Names::new("crowd");
    let listener = Listener::builder().directory(&names.0).mode(0o666).bind("service").unwrap();
    let crowd = Actor(command("crowd", &format!("{} service", names.path())).spawn().unwrap());
    let clients: Vec<_> = (0..50)
        .map(|_| {
            let connector = names.connector();
            std::thread::spawn(move || connector.connect("service", DEADLINE).unwrap().send(b"hello").unwrap())
        })
        .collect();
    for _ in 0..50 {
        let channel = listener.accept(DEADLINE).unwrap();
        assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"hello");
    }
    for client in clients {
        client.join().unwrap();
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 300, "{open} descriptors are open for pending connections");
    drop(crowd);
}

#[test]
fn a_channel_by_name_is_one_like_any_other() {
    let names = Names::new("channel");
    let _server = start_server("server", &names, "service");
    let channel = names.connector().connect("service", DEADLINE).unwrap();
    let (end, other) = Channel::pair().unwrap();
    channel.send(strait::Outgoing::new(b"an end").handle(other)).unwrap();
    let mut back = channel.recv_by(DEADLINE).unwrap();
    let other = back.take_handles().unwrap().remove(0).into_channel().unwrap();
    end.send(b"through").unwrap();
    assert_eq!(other.recv_by(DEADLINE).unwrap().bytes(), b"through");
    let large = common::pattern(7, 20 << 20);
    channel.send(&large).unwrap();
    assert_eq!(common::checksum(channel.recv_by(DEADLINE).unwrap().bytes()), common::checksum(&large));
}

/// Shows that a panic of the policy ends only the call of `accept` that asked the policy.
#[test]
fn a_policy_that_panics_takes_only_its_own_call_along() {
    let names = Names::new("panic");
    let first = std::sync::atomic::AtomicBool::new(true);
    let policy = move |_: &strait::Peer| {
        assert!(!first.swap(false, std::sync::atomic::Ordering::Relaxed), "a mistake in the policy");
        true
    };
    let listener = Listener::builder().directory(&names.0).policy(policy).bind("service").unwrap();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                let connector = names.connector();
                scope.spawn(move || connector.connect("service", DEADLINE).map(drop))
            })
            .collect();
        let acceptors: Vec<_> = (0..2).map(|_| scope.spawn(|| listener.accept(SOON).map(drop))).collect();
        let accepted = acceptors.into_iter().map(|acceptor| acceptor.join());
        // One call panicked; the other accepted.
        assert!(accepted.filter(|accepted| matches!(accepted, Ok(Ok(())))).count() == 1);
        let connected = clients.into_iter().map(|client| client.join().unwrap());
        assert_eq!(connected.filter(Result::is_ok).count(), 1);
    });
}

/// Accepts connections to a name, given as "directory name", until it is killed.
fn accepts(argument: &str) {
    let listener = serve(argument);
    let _ = listener.accept(2 * DEADLINE);
}

/// Shows that a listener in a user namespace without mappings, where all users have the same id, accepts no process.
#[test]
fn where_all_users_look_the_same_nobody_is_let_in() {
    let names = Names::new("unmapped");
    let inner = command("accepts", &format!("{} service", names.path()));
    // A user namespace without any user mappings.
    let mut unshare = std::process::Command::new("unshare");
    unshare.arg("--user").arg(inner.get_program()).args(inner.get_args()).stdout(Stdio::null());
    for (key, value) in inner.get_envs() {
        unshare.env(key, value.unwrap());
    }
    let Ok(child) = unshare.spawn() else { return println!("left out: there is no unshare") };
    let mut actor = Actor(child);
    while !strait::meet::names(Some(&names.0)).unwrap().iter().any(|there| there.is_live) {
        if actor.0.try_wait().unwrap().is_some() {
            return println!("left out: no user namespace can be made");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        names.connector().connect("service", DEADLINE).err().map(Error::from),
        Some(Error::Refused(Refusal::Policy))
    );
}

/// Shows that an error of meeting names the object, and becomes an `Error`, an `io::Error` or a boxed error by `?`.
#[test]
fn an_error_of_meeting_names_its_object() {
    let names = Names::new("errors");
    let at = |name: &str| names.0.join(name).display().to_string();
    let failed = names.connector().connect("svc", SOON).unwrap_err();
    assert_eq!((failed.error, failed.name.as_deref()), (Error::NobodyThere, Some("svc")));
    assert_eq!(failed.path.as_deref(), Some(&*names.0.join("svc")));
    assert_eq!(failed.doing(), format!("connecting to \"svc\" at {}", at("svc")));
    assert_eq!(failed.to_string(), format!("{}: {}", failed.doing(), Error::NobodyThere));
    assert_eq!(std::error::Error::source(&failed).unwrap().to_string(), Error::NobodyThere.to_string());
    let io = std::io::Error::from(failed.clone());
    assert_eq!((io.kind(), io.to_string()), (std::io::ErrorKind::NotFound, failed.to_string()));
    let bad = names.connector().connect("a/b", SOON).unwrap_err().to_string();
    assert_eq!(bad, format!("connecting to \"a/b\": {}", Error::BadName));
    let listener = names.listener("svc");
    let taken = Listener::builder().directory(&names.0).bind("svc").unwrap_err().to_string();
    assert_eq!(taken, format!("listening as \"svc\" at {}: {}", at("svc"), Error::NameTaken));
    let late = names.connector().connect("svc", Duration::from_millis(50)).unwrap_err().to_string();
    assert!(late.contains("timed out: the listener has not accepted this process"), "{late}");
    let not_passed = Listener::builder().activated(Some("web")).unwrap_err().to_string();
    assert!(not_passed.starts_with("taking the socket \"web\" of the service manager: "), "{not_passed}");
    let mut missing = Command::new("/nowhere/worker");
    let by_invitation = listener.invite(SOON).unwrap().spawn(&mut missing).unwrap_err();
    let with_channel = missing.spawn_with_channel().unwrap_err();
    for failed in [by_invitation, with_channel] {
        let text = failed.to_string();
        assert!(text.starts_with("starting /nowhere/worker: No such file"), "{text}");
        assert!(text.ends_with("check that the program exists, and that this user may run it"), "{text}");
    }
    fn plainly() -> Result<(), Error> {
        strait::from_parent()?;
        Ok(())
    }
    fn boxed() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        strait::from_parent()?;
        Ok(())
    }
    assert_eq!(plainly(), Err(Error::NoParent));
    assert_eq!(boxed().unwrap_err().to_string(), format!("taking the channel to the parent: {}", Error::NoParent));
}
