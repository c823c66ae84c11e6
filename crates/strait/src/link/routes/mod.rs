//! Where links lead: to which [lanes](arenas), to which [processes](peers), and which links are [retained](retention)
//! for that.

pub(super) mod arenas;
pub(crate) mod peers;
pub(crate) mod retention;
