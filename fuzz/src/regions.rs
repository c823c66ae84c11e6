//! The regions that an input makes, sends, maps and seals.
//!
//! As long as nothing was tampered with, each region has the bytes and the rights that its maker gave it. Whatever was
//! tampered with, a received region can be read wherever it says that it has bytes, and a region that can be viewed
//! never changes.

use strait::region::{Access, Region, RegionError, RegionMap};
use strait::{Error, Handle};

use crate::program::Instruction;
use crate::world::{Expected, World, content};

/// The greatest number of regions that are held.
const MOST: usize = 8;

/// What is known about a region, through whichever handle it is used.
#[derive(Debug)]
struct Fact {
    seed: u8,
    len: usize,
    no_writer: bool,
    sealed: bool,
}

/// Which region a handle refers to, and whether the handle is read-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Which {
    fact: usize,
    reader: bool,
}

#[derive(Debug)]
struct Held {
    region: Region,
    /// The region, as far as it is known; `None` if it arrived after something was tampered with.
    which: Option<Which>,
    map: Option<RegionMap>,
}

/// All regions of an input.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    facts: Vec<Fact>,
    held: Vec<Held>,
}

/// Panics if a region failed with an unexpected error. Errors that a caller expects in one place are checked there.
fn check(failed: RegionError, call: &str) {
    match failed.error {
        Error::NotSealed | Error::ReadOnly | Error::StillMapped | Error::OutOfRange { .. } => {}
        _ => panic!("{call} of a region: {failed}"),
    }
}

impl World {
    fn region_at(&self, who: u8) -> Option<usize> {
        let held = self.regions.held.len();
        (held > 0).then(|| usize::from(who) % held)
    }

    fn new_region(&mut self, a: u8, word: u32) -> (Region, Which) {
        let seed = self.next_seed();
        let len = [0, 1, 64, 4095, 4096, 5000, 20_000, 1 << 16][usize::from(a % 8)];
        let region = Region::new(len).expect("a region");
        region.write_at(&content(seed, len), 0).expect("a region that was just made");
        let mut fact = Fact { seed, len, no_writer: false, sealed: false };
        match word % 4 {
            0 => fact.sealed = region.seal().is_ok(),
            1 => fact.no_writer = region.admit_no_writer().is_ok(),
            _ => {}
        }
        self.regions.facts.push(fact);
        (region, Which { fact: self.regions.facts.len() - 1, reader: false })
    }

    /// Returns a handle of a region, either of a new one or of one that is held, and what to expect of it at the
    /// receiver.
    pub(crate) fn region_handle(&mut self, who: u8, a: u8, word: u32) -> (Handle, Expected) {
        let held = self.region_at(who).filter(|_| a & 8 != 0).map(|at| &self.regions.held[at]);
        let (region, which) = match held {
            Some(Held { region, which: Some(which), .. }) => (region.clone(), *which),
            _ => self.new_region(a, word),
        };
        (Handle::Region(region), Expected::Region(which))
    }

    pub(crate) fn make_region(&mut self, a: u8, word: u32) {
        let (region, which) = self.new_region(a, word);
        self.hold_region(region, Some(which));
    }

    /// Holds a region that arrived or came back from a failed send; drops it if too many are held.
    pub(crate) fn hold_region(&mut self, region: Region, which: Option<Which>) {
        if self.regions.held.len() < MOST {
            self.regions.held.push(Held { region, which, map: None });
        }
    }

    /// Holds and checks a region that arrived and should be `which`.
    pub(crate) fn region_arrived(&mut self, region: Region, which: Which) {
        let Fact { len, .. } = self.regions.facts[which.fact];
        assert_eq!(region.len(), len, "a region of another size came");
        self.hold_region(region, Some(which));
        self.look_at_region(self.regions.held.len() as u8 - 1, 0, 0);
    }

    /// Returns the range of a region that is mapped or read; it may extend past the end by one byte.
    fn range(len: usize, word: u32) -> std::ops::Range<usize> {
        let from = word as u16 as usize % (len + 1);
        from..from + (word >> 16) as usize % (len + 2 - from)
    }

    /// Reads a region in one of several ways, and checks its bytes and its rights.
    pub(crate) fn look_at_region(&mut self, who: u8, a: u8, word: u32) {
        let Some(at) = self.region_at(who) else { return };
        let honest = self.honest();
        let Held { region, which, map } = &mut self.regions.held[at];
        let (len, range) = (region.len(), Self::range(region.len(), word));
        let inside = range.end <= len;
        let expected = which.filter(|_| honest).map(|which| (which, &self.regions.facts[which.fact]));
        let access = region.access().expect("what the kernel says");
        if let Some((which, fact)) = expected {
            let expected = match fact {
                Fact { sealed: true, .. } => Access::Sealed,
                Fact { no_writer: true, .. } => Access::ReadOnly,
                _ if which.reader => Access::ReadOnly,
                _ => Access::Writable,
            };
            assert_eq!(access, expected, "what can be done with a region");
        }
        let mut out = vec![0; range.len()];
        let read = match a % 4 {
            0 => region.read_at(&mut out, range.start),
            1 => {
                let map = map.take().map_or_else(|| region.map(..), Ok).expect("a mapping of all of it");
                let read = map.read_at(&mut out, range.start);
                // Sent memory shrinks now, if it can.
                self.proxies.pump();
                let mut again = out.clone();
                assert_eq!(map.read_at(&mut again, range.start), read);
                let _ = map.word64(range.start & !7).map(|word| word.load(std::sync::atomic::Ordering::Relaxed));
                if a & 8 != 0 {
                    self.regions.held[at].map = Some(map);
                }
                read
            }
            how => {
                let (proxies, which) = (&mut self.proxies, how);
                let viewed = if which == 2 {
                    region.view(range.clone()).map(|view| {
                        let before = view.to_vec();
                        proxies.pump();
                        assert!(*view == before, "what is sealed changed");
                        before
                    })
                } else {
                    region.copy_on_write(range.clone()).map(|mut copy| {
                        let before = copy.to_vec();
                        proxies.pump();
                        assert!(*copy == before, "what is sealed changed");
                        copy.fill(0xee);
                        before
                    })
                };
                if let Err(failed) = &viewed {
                    let said = if access == Access::Sealed { Error::OutOfRange { len } } else { Error::NotSealed };
                    assert_eq!(failed.error, said, "looking at a region that lets one do {access:?}");
                }
                viewed.map(|bytes| out = bytes)
            }
        };
        match read {
            Ok(()) => assert!(inside, "bytes of a region that it does not have"),
            Err(error) => return check(error, "reading"),
        }
        let Some(which) = self.regions.held[at].which.filter(|_| honest) else { return };
        let fact = &self.regions.facts[which.fact];
        assert!(out == content(fact.seed, len)[range], "the bytes of a region");
    }

    /// Writes the bytes that are there anyway, takes rights away, or drops the region or its mapping.
    pub(crate) fn change_region(&mut self, who: u8, a: u8, word: u32) {
        let Some(at) = self.region_at(who) else { return };
        let honest = self.honest();
        let Held { region, which, map } = &mut self.regions.held[at];
        let fact = which.map(|which| &mut self.regions.facts[which.fact]);
        let range = Self::range(region.len(), word);
        let changed = match a % 8 {
            0 => region.seal().map(|()| {
                if let Some(fact) = fact {
                    fact.sealed = true;
                }
                assert!(region.is_sealed() == Ok(true));
            }),
            1 => region.admit_no_writer().map(|()| {
                if let Some(fact) = fact {
                    fact.no_writer = true;
                }
            }),
            2 => {
                let reader = region.reader();
                reader.map(|reader| {
                    assert_ne!(reader.access(), Ok(Access::Writable), "a handle that can only read");
                    *region = reader;
                    *map = None;
                    if let Some(which) = which {
                        which.reader = true;
                    }
                })
            }
            3 | 4 => {
                let bytes = fact.map_or(vec![0xdd; range.end], |fact| content(fact.seed, range.end));
                let written = match a % 8 {
                    3 => region.write_at(&bytes[range.clone()], range.start),
                    _ => region.map_writable(..).and_then(|map| map.write_at(&bytes[range.clone()], range.start)),
                };
                written.inspect(|()| assert!(range.end <= region.len(), "bytes that it does not have were written"))
            }
            // Turns the region into a descriptor and back.
            5 => region.to_fd().map(|fd| {
                let again = Region::from_fd(fd).expect("a region's descriptor");
                assert_eq!(again.len(), region.len());
                *region = again;
            }),
            6 => {
                *map = None;
                Ok(())
            }
            _ => {
                self.regions.held.remove(at);
                Ok(())
            }
        };
        if let Err(failed) = changed {
            match failed.error {
                // Memory that the proxy made may be of a file system that does not open it anew.
                Error::System { .. } | Error::NoDescriptors if !honest && a % 8 == 2 => {}
                _ => check(failed, "changing"),
            }
        }
    }

    pub(crate) fn act_on_regions(&mut self, what: u8, Instruction { who, a, word, .. }: Instruction) {
        match what {
            0 => self.make_region(a, word),
            1 => self.look_at_region(who, a, word),
            _ => self.change_region(who, a, word),
        }
    }

    pub(crate) fn forget_regions(&mut self) {
        for who in 0..self.regions.held.len() {
            self.look_at_region(who as u8, 0, 0);
        }
        self.regions.held.clear();
    }
}
