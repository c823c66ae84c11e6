//! The processes of a round. Each process runs this program; the arguments name its role.

use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::process::{Resource as Limited, Rlimit, getrlimit, setrlimit};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Listener, Outgoing, Peer};

use crate::world::attacker::{Attacker, Means};
use crate::world::choices::Choices;
use crate::world::donors::Donors;
use crate::world::ledger::{Actor, Ledger, Phase, Word, now};
use crate::world::plan::Plan;
use crate::world::victim::{Setting, Victim, tight_limits};

/// How long the bystander waits for an answer, and the victim for room to answer, before the delay counts as a
/// mistake.
const ANSWER: Duration = Duration::from_secs(10);

/// The arguments of a process of a round.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    /// The role of the process: `victim`, `attacker`, `burner` or `bystander`.
    pub role: String,
    /// The seed of the world.
    pub seed: u64,
    /// The number of the round.
    pub round: u64,
    /// The names of the steps that the attacker may take; empty for all steps.
    pub only: Vec<String>,
    /// The number of the descriptor of the ledger's memory.
    pub ledger: i32,
    /// The numbers of the descriptors of the process's sockets.
    pub sockets: Vec<i32>,
    /// For each socket of the attacker the number of the descriptor of a copy of the victim's end; -1 for no copy.
    pub copies: Vec<i32>,
    /// The directory of the victim's listener.
    pub folder: PathBuf,
}

impl Arguments {
    /// Returns the arguments as words of a command line.
    pub fn to_words(&self) -> Vec<String> {
        let list = |numbers: &[i32]| numbers.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
        vec![
            format!("--role={}", self.role),
            format!("--seed={}", self.seed),
            format!("--round={}", self.round),
            format!("--only={}", self.only.join(",")),
            format!("--ledger={}", self.ledger),
            format!("--sockets={}", list(&self.sockets)),
            format!("--copies={}", list(&self.copies)),
            format!("--folder={}", self.folder.display()),
        ]
    }

    /// Reads the arguments from the words of a command line; `None` if they are not for a process of a round.
    pub fn from_words(words: impl Iterator<Item = String>) -> Option<Self> {
        let list = |text: &str| text.split(',').filter_map(|number| number.parse().ok()).collect();
        let mut this = Self::default();
        for word in words {
            let (name, value) = word.split_once('=')?;
            match name {
                "--role" => this.role = value.into(),
                "--seed" => this.seed = value.parse().ok()?,
                "--round" => this.round = value.parse().ok()?,
                "--only" => this.only = value.split(',').filter(|name| !name.is_empty()).map(Into::into).collect(),
                "--ledger" => this.ledger = value.parse().ok()?,
                "--sockets" => this.sockets = list(value),
                "--copies" => this.copies = list(value),
                "--folder" => this.folder = value.into(),
                _ => return None,
            }
        }
        (!this.role.is_empty()).then_some(this)
    }

    /// Plays the role of this process, and returns at its end.
    pub fn play(self) {
        // SAFETY: the controller left these descriptors open for this process alone, and nothing else owns them.
        let own = |number: i32| unsafe { OwnedFd::from_raw_fd(number) };
        let ledger = Arc::new(Ledger::of(own(self.ledger)).expect("the ledger"));
        let sockets: Vec<_> = self.sockets.iter().map(|number| own(*number)).collect();
        let copies: Vec<_> = self.copies.iter().map(|number| (*number >= 0).then(|| own(*number))).collect();
        for fd in sockets.iter().chain(copies.iter().flatten()) {
            let _ = rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC);
        }
        match self.role.as_str() {
            "victim" => play_victim(&self, ledger, sockets),
            "attacker" => play_attacker(&self, &ledger, sockets, copies),
            "burner" => burn(&ledger),
            "bystander" => play_bystander(&ledger, sockets),
            role => panic!("nobody is a {role}"),
        }
    }
}

/// Waits until the number of the phase is not `after`. Returns the new phase and its number.
fn next_phase(ledger: &Ledger, after: u64) -> (Phase, u64) {
    loop {
        let (phase, number) = ledger.phase();
        if number != after {
            return (phase, number);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Installs a hook that records each panic as a mistake, even a caught panic.
fn report_panics(ledger: &Arc<Ledger>) {
    let ledger = ledger.clone();
    std::panic::set_hook(Box::new(move |panic| {
        ledger.find(&format!("panic: {panic}"));
    }));
}

fn play_victim(arguments: &Arguments, ledger: Arc<Ledger>, mut sockets: Vec<OwnedFd>) {
    let plan = Plan::draw(arguments.seed, arguments.round);
    report_panics(&ledger);
    if plan.tight {
        strait::quota::set_limits(tight_limits());
    }
    strait::quota::on_bad_peer(|_| ());
    let limit = getrlimit(Limited::Nofile);
    setrlimit(Limited::Nofile, Rlimit { current: Some(plan.descriptors), ..limit }).expect("a lower limit");
    // The kernel makes the descriptor table as large as the table may become, while this process has one thread.
    let _ = rustix::io::fcntl_dupfd_cloexec(&sockets[0], i32::try_from(plan.descriptors).expect("few") - 1);
    let honest = Channel::over(sockets.remove(0)).expect("a channel to the bystander");
    let of_this_user = |peer: &Peer| peer.uid == rustix::process::getuid().as_raw();
    let builder = Listener::builder().policy(of_this_user).on_refused(|refused| drop(format!("{refused:?}")));
    let builder = builder.directory(&arguments.folder).options(plan.options()).mode(0o600);
    let listener = builder.bind("victim").expect("a listener");
    let setting = Setting { options: plan.options(), within: false, ledger: Some(ledger.clone()) };
    let victim = Victim::new(setting, Some(listener)).expect("a victim");
    let (parked, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (ledger, victim, parked, over) = (&ledger, &victim, &parked, &over);
        scope.spawn(move || echo(&honest, ledger, over, plan.echoes_by_set));
        scope.spawn(move || second_driver(arguments, ledger, victim, parked));
        // Has the library create the objects that it creates once for a process, before the controller counts.
        victim.driver(Choices::of_seed(0, 0, 0), 0).warm_up();
        ledger.word(Word::VictimIn).store(1, SeqCst);
        first_driver(arguments, ledger, victim, parked, sockets);
        over.store(true, SeqCst);
    });
}

fn first_driver(arguments: &Arguments, ledger: &Ledger, victim: &Victim, parked: &AtomicU64, sockets: Vec<OwnedFd>) {
    let mut driver = victim.driver(Choices::of_seed(arguments.seed, arguments.round, 2), 0);
    let (mut phase, mut number) = next_phase(ledger, 0);
    for (nth, socket) in sockets.into_iter().enumerate() {
        if let Err(error) = victim.meet(socket, nth % 2 == 0) {
            ledger.note(Actor::Victim, &format!("Channel::over: {error}"));
        }
    }
    loop {
        match phase {
            Phase::Begin => {}
            Phase::Active => {
                while ledger.phase().1 == number {
                    driver.act();
                }
            }
            Phase::Quiet => {
                // The second driver has to be idle first.
                while parked.load(SeqCst) != number && ledger.phase().1 == number {
                    std::thread::sleep(Duration::from_millis(1));
                }
                ledger.word(Word::VictimIn).store(number, SeqCst);
                driver.wait_while(|| ledger.phase().1 == number);
            }
            Phase::LetGo => {
                while parked.load(SeqCst) != number {
                    std::thread::sleep(Duration::from_millis(1));
                }
                driver.let_go();
                ledger.word(Word::VictimIn).store(number, SeqCst);
                // The listener still accepts: only accept calls drop the pending connections of dead processes.
                while ledger.phase().1 == number {
                    driver.refuse_visitors();
                }
            }
            Phase::End => return,
        }
        (phase, number) = next_phase(ledger, number);
    }
}

/// Runs a second thread on the victim's channels. The thread acts only in the active phase, so that only the first
/// thread waits in the quiet phase.
fn second_driver(arguments: &Arguments, ledger: &Ledger, victim: &Victim, parked: &AtomicU64) {
    let mut driver = victim.driver(Choices::of_seed(arguments.seed, arguments.round, 3), 1);
    let (mut phase, mut number) = next_phase(ledger, 0);
    loop {
        match phase {
            Phase::Active => {
                while ledger.phase().1 == number {
                    driver.act();
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            Phase::End => return,
            _ => parked.store(number, SeqCst),
        }
        (phase, number) = next_phase(ledger, number);
    }
}

/// Answers the bystander's messages, each with its own bytes and handles, until `over` is set or the bystander is
/// gone. With `by_set`, waits by a wait set.
fn echo(honest: &Channel, ledger: &Ledger, over: &AtomicBool, by_set: bool) {
    let set = WaitSet::new().expect("a set");
    set.add(honest, 1, Interest::Readable, Mode::Level).expect("a member");
    let mut events = Vec::new();
    while !over.load(SeqCst) {
        if by_set && set.wait(&mut events, Duration::from_millis(200)).is_err() {
            ledger.find("the set of the bystander's channel failed");
            return;
        }
        let deadline = if by_set { Deadline::NOW } else { Deadline::after(Duration::from_millis(200)) };
        match honest.recv_by(deadline) {
            Ok(mut message) => {
                let handles = message.take_handles().unwrap_or_default();
                let answer = Outgoing::new(message.bytes()).handles(handles);
                if let Err(failed) = honest.send_by(answer, ANSWER) {
                    ledger.find(&format!("the bystander was not answered: {}", failed.error));
                    return;
                }
            }
            Err(strait::Error::WouldBlock | strait::Error::TimedOut) => {}
            Err(strait::Error::PeerClosed) => return,
            Err(error) => {
                ledger.find(&format!("the bystander's channel failed: {error}"));
                return;
            }
        }
    }
}

fn play_attacker(arguments: &Arguments, ledger: &Ledger, sockets: Vec<OwnedFd>, copies: Vec<Option<OwnedFd>>) {
    let plan = Plan::draw(arguments.seed, arguments.round);
    // Panics of the attacker are not printed and do not count.
    std::panic::set_hook(Box::new(|_| ()));
    // SAFETY: this process has one thread.
    let donors = if plan.has_donors { unsafe { Donors::start() } } else { None };
    let listener = Some(arguments.folder.join("victim"));
    let means = Means { listener, donors, within: false, only: arguments.only.clone() };
    let choices = Choices::of_seed(arguments.seed, arguments.round, 1);
    let copied: Vec<_> = sockets.iter().map(|socket| socket.try_clone().expect("a copy")).collect();
    // The kernel attaches credentials to packets from a socket with this option.
    let attach_credentials = |on| {
        for socket in copied.iter().filter(|_| plan.is_named) {
            rustix::net::sockopt::set_socket_passcred(socket, on).expect("credentials");
        }
    };
    let pairs = sockets.into_iter().zip(copies).collect();
    let (_, mut number) = next_phase(ledger, 0);
    attach_credentials(true);
    let attacker = Attacker::new(choices, means, pairs, |text| ledger.note(Actor::Attacker, text));
    let Ok(mut attacker) = attacker else { return };
    attach_credentials(false);
    drop(copied);
    loop {
        let (phase, now) = ledger.phase();
        if phase == Phase::End || phase == Phase::LetGo {
            return;
        }
        if now != number {
            number = now;
        }
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attacker.act()));
        ledger.add(Word::Steps, 1);
        ledger.add(Word::Valid, attacker.take_valid());
        std::thread::sleep(Duration::from_micros(if phase == Phase::Quiet { 2000 } else { plan.pace }));
    }
}

/// Uses a processor, and does nothing else, until the attacker would end.
fn burn(ledger: &Ledger) {
    while !matches!(ledger.phase().0, Phase::LetGo | Phase::End) {
        for _ in 0..10_000 {
            std::hint::spin_loop();
        }
    }
}

/// Plays the bystander, an honest peer, which measures the times of the victim's answers.
fn play_bystander(ledger: &Ledger, mut sockets: Vec<OwnedFd>) {
    let channel = Channel::over(sockets.remove(0)).expect("a channel to the victim");
    let (mut phase, mut number) = ledger.phase();
    let mut nth = 0;
    loop {
        match phase {
            Phase::Begin | Phase::Active => {
                while ledger.phase().1 == number {
                    let begun = now();
                    if let Err(error) = round_trip(&channel, nth) {
                        ledger.find(&format!("a bystander: {error} after {:?}", now() - begun));
                        return;
                    }
                    // Round trips with handles take longer and are not measured.
                    if nth % 8 != 7 {
                        ledger.round_trip(now() - begun);
                    }
                    nth += 1;
                    std::thread::sleep(Duration::from_micros(500));
                }
            }
            Phase::Quiet | Phase::LetGo => ledger.word(Word::BystanderIn).store(number, SeqCst),
            Phase::End => return,
        }
        (phase, number) = next_phase(ledger, number);
    }
}

/// Sends a message and receives its answer. One of eight messages carries a descriptor and a channel end, which come
/// back in the answer.
fn round_trip(channel: &Channel, nth: u64) -> Result<(), strait::Error> {
    let bytes = nth.to_le_bytes();
    let mut message = Outgoing::new(&bytes);
    if nth % 8 == 7 {
        let (one, _other) = Channel::pair()?;
        let file: OwnedFd = std::fs::File::open("/dev/null").map_err(|_| strait::Error::NoDescriptors)?.into();
        message = message.handle(one).handle(file);
    }
    channel.send_by(message, ANSWER).map_err(strait::Error::from)?;
    let answer = channel.recv_by(ANSWER)?;
    assert_eq!(answer.bytes(), bytes, "each answer is that to its question");
    Ok(())
}
