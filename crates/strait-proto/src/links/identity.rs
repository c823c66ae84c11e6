//! Identities of processes, and sets of possible holders of a copy of a socket.

/// The identity of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    /// The inode number of the process's pidfd, by the kernel's report.
    pub inode: u64,
    /// The random name in the process's first packet. The name distinguishes programs within one process: copies of
    /// the library, and programs executed one after the other.
    pub name: u128,
}

impl Identity {
    /// Returns the identity of the sender of a first packet with this name; `None` if the kernel reports no inode
    /// number.
    pub(super) fn heard(inode: Option<u64>, name: u128) -> Option<Self> {
        inode.map(|inode| Self { inode, name })
    }
}

/// The makers of a link: every possible holder of a copy of the socket, except the two processes of the link.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Makers {
    /// These processes, sorted, without duplicates; empty for a direct link.
    Known(Vec<Identity>),
    /// Any process: evidence about the socket is missing or does not agree. Such a link is *foreign*.
    Anyone,
}

impl Makers {
    /// The makers of a direct link.
    pub const NONE: Self = Self::Known(Vec::new());

    /// Returns whether a link with these makers is direct.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Returns whether these makers contain the process.
    #[must_use]
    pub fn contains(&self, process: Identity) -> bool {
        match self {
            Self::Known(known) => known.contains(&process),
            Self::Anyone => true,
        }
    }

    /// Returns whether a link with these makers may carry a lane whose makers are `others`: all makers of the link
    /// can harm the lane anyway.
    #[must_use]
    pub fn are_among(&self, others: &Self) -> bool {
        match (self, others) {
            (_, Self::Anyone) => true,
            (Self::Anyone, Self::Known(_)) => false,
            (Self::Known(known), Self::Known(_)) => known.iter().all(|&process| others.contains(process)),
        }
    }

    /// Returns these makers and `others`.
    #[must_use]
    pub fn and(self, others: &Self) -> Self {
        match (self, others) {
            (Self::Known(mut known), Self::Known(more)) => {
                known.extend(more);
                known.sort_unstable();
                known.dedup();
                Self::Known(known)
            }
            _ => Self::Anyone,
        }
    }

    /// Returns these makers and a process; if the process is unknown, [`Makers::Anyone`].
    #[must_use]
    pub fn with(self, process: Option<Identity>) -> Self {
        match process {
            Some(process) => self.and(&Self::Known(vec![process])),
            None => Self::Anyone,
        }
    }

    /// Returns these makers without the two processes of a link.
    #[must_use]
    pub fn between(self, processes: [Identity; 2]) -> Self {
        match self {
            Self::Known(mut known) => {
                known.retain(|process| !processes.contains(process));
                Self::Known(known)
            }
            Self::Anyone => Self::Anyone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(inodes: &[u64]) -> Makers {
        Makers::Known(inodes.iter().map(|&inode| Identity { inode, name: 7 }).collect())
    }

    #[test]
    fn makers_are_a_set() {
        assert_eq!(processes(&[3, 5]).and(&processes(&[1, 3])), processes(&[1, 3, 5]));
        assert_eq!(processes(&[3]).and(&Makers::Anyone), Makers::Anyone);
        assert_eq!(processes(&[3]).with(None), Makers::Anyone);
        let ends = [3, 4].map(|inode| Identity { inode, name: 7 });
        assert!(processes(&[3]).between(ends).is_none());
        let other_program = Identity { inode: 3, name: 8 };
        assert_eq!(processes(&[3]).between([other_program, ends[1]]), processes(&[3]));
    }

    #[test]
    fn a_lane_uses_a_link_only_if_its_own_makers_include_those_of_the_link() {
        assert!(Makers::NONE.are_among(&Makers::NONE));
        assert!(processes(&[3]).are_among(&processes(&[1, 3])));
        assert!(!processes(&[2, 3]).are_among(&processes(&[1, 3])));
        assert!(!Makers::Anyone.are_among(&processes(&[1, 3])));
        assert!(Makers::Anyone.are_among(&Makers::Anyone));
    }
}
