//! Models of claims for the model checker.
//!
//! The model checker has no `membarrier`. The model replaces it by the property needed here: each thread has a lock.
//! The light barrier locks and unlocks the lock of its thread; the heavy barrier does so with all locks. Two light
//! barriers do not order their threads.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::AtomicUsize;
use loom::thread;

use super::{Barrier, Word, begin, end, outlast};

impl Word for AtomicUsize {
    fn load(&self) -> usize {
        self.load(Acquire)
    }
    fn store(&self, value: usize) {
        self.store(value, Release);
    }
}

/// The barriers as seen by one thread: all locks, and the index of the thread's own lock.
struct Of<'a>(&'a [Mutex<()>], usize);

impl Barrier for Of<'_> {
    fn light(&self) {
        drop(self.0.get(self.1).map(|lock| lock.lock().unwrap()));
    }
    fn heavy(&self) {
        self.0.iter().for_each(|lock| drop(lock.lock().unwrap()));
    }
}

/// A slot with its entry, and the claims of the users. The model checker detects a thread that reads the entry while
/// another thread changes it.
struct World {
    generation: AtomicUsize,
    entry: UnsafeCell<usize>,
    claims: Vec<AtomicUsize>,
    locks: Vec<Mutex<()>>,
}

/// The slot's number in claims.
const IT: usize = 8;

impl World {
    #[allow(clippy::arc_with_non_send_sync, reason = "threads of the model checker are no threads")]
    fn new(users: usize, barriers: bool) -> Arc<Self> {
        Arc::new(Self {
            generation: AtomicUsize::new(1),
            entry: UnsafeCell::new(1),
            claims: (0..users).map(|_| AtomicUsize::new(0)).collect(),
            locks: (0..if barriers { users } else { 0 }).map(|_| Mutex::new(())).collect(),
        })
    }

    /// Reads the entry if the slot still has the generation. Returns whether the slot had the generation.
    fn look(&self, user: usize, generation: usize) -> bool {
        let is_good = || self.generation.load(Acquire) == generation;
        let used = begin(&self.claims[user], &Of(&self.locks, user), IT, is_good);
        if used {
            self.entry.with(|entry| {
                // SAFETY: no thread changes the entry while the entry is claimed, as the model checks.
                assert_eq!(unsafe { *entry }, generation, "what the handle stands for");
            });
            end(&self.claims[user]);
        }
        used
    }

    /// Takes the entry away, and puts the next entry in its place.
    fn replace(&self) {
        assert_eq!(self.generation.compare_exchange(1, 0, AcqRel, Acquire), Ok(1));
        let claims = || self.claims.iter().collect();
        outlast(claims, &Of(&self.locks, usize::MAX), |claim| claim == IT, pause);
        self.entry.with_mut(|entry| {
            // SAFETY: no thread claims the entry, as the model checks.
            unsafe { *entry = 2 };
        });
        self.generation.store(2, Release);
    }
}

fn pause() -> bool {
    thread::yield_now();
    true
}

fn check(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(test);
}

/// Two threads use an entry that a third thread takes away, and one of the two continues with the next entry.
fn two_users_and_who_replaces(barriers: bool) {
    check(move || {
        let world = World::new(2, barriers);
        let users: Vec<_> = (0..2)
            .map(|user| {
                let world = world.clone();
                thread::spawn(move || {
                    world.look(user, 1);
                    world.look(user, 2 - user);
                })
            })
            .collect();
        world.replace();
        users.into_iter().for_each(|user| user.join().unwrap());
        assert!(!world.look(0, 1) && world.look(0, 2));
    });
}

#[test]
fn what_is_claimed_stays() {
    two_users_and_who_replaces(true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_barriers_it_is_changed_while_somebody_looks() {
    two_users_and_who_replaces(false);
}

/// One thread reads under claims as long as the slot is open; another closes the slot twice to do more.
fn a_reader_and_who_closes(barriers: bool) {
    check(move || {
        let world = World::new(1, barriers);
        let reader = {
            let world = world.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let is_open = || world.generation.load(Acquire) == 1;
                    if begin(&world.claims[0], &Of(&world.locks, 0), IT, is_open) {
                        // SAFETY: no other thread is let in meanwhile, as the model checks.
                        world.entry.with_mut(|entry| unsafe { *entry += 1 });
                        end(&world.claims[0]);
                    }
                }
            })
        };
        for _ in 0..2 {
            assert_eq!(world.generation.compare_exchange(1, 0, AcqRel, Acquire), Ok(1));
            let claims = || world.claims.iter().collect();
            outlast(claims, &Of(&world.locks, usize::MAX), |claim| claim == IT, pause);
            // SAFETY: no other thread is let in meanwhile, as the model checks.
            world.entry.with_mut(|entry| unsafe { *entry += 1 });
            world.generation.store(1, Release);
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_slot_that_was_closed_is_whose_lock_it_is() {
    a_reader_and_who_closes(true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_barriers_both_are_in() {
    a_reader_and_who_closes(false);
}
