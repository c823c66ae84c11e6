//! A full mesh of processes: a controller introduces each member to every other, by moving ends of channels.

use std::fs;

use serde::{Deserialize, Serialize};
use strait::{Channel, Options};

use super::super::parts::Share;
use super::sending::new_channel;
use super::talk::{self, SIZE, Words, words};
use super::units::{held_memory, raise_descriptor_limit};
use crate::process::clock;
use crate::shape::payload::{self, STOP};
use crate::trouble::{Result, While};
use crate::work::Report;

/// The cost of its channels for a member of the mesh.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Cost {
    /// Processor time in nanoseconds.
    processor: f64,
    /// Memory in bytes. Of shared memory, the member's share counts.
    memory: f64,
    descriptors: f64,
}

/// Runs the first process of the task `Mesh`, the controller. If `joined`, makes a channel for each pair of members and
/// sends one end to each. Reports the cost of all channels together: their time, the processor time of all processes,
/// and the memory and descriptors of all members.
pub(super) fn control(members: &[Channel], options: &Options, joined: bool) -> Result<Report> {
    raise_descriptor_limit()?;
    // Each member has read what it holds before.
    members.iter().try_for_each(|member| talk::hear_number(member, 0))?;
    let (begin, processor) = (clock::now(), clock::cpu());
    let mut channels = 0;
    if joined {
        for (index, one) in members.iter().enumerate() {
            for other in &members[..index] {
                let (to_one, to_other) = new_channel(options)?;
                talk::give(one, &words(0, 0), [to_one])?;
                talk::give(other, &words(0, 0), [to_other])?;
                channels += 1;
            }
        }
    }
    members.iter().try_for_each(|member| talk::say(member, STOP))?;
    members.iter().try_for_each(|member| talk::hear_number(member, 0))?;
    let time = (clock::now() - begin) as f64;
    let mut sum = Cost { processor: (clock::cpu() - processor) as f64, ..Cost::default() };
    // All members hold all ends until each has read what it holds: a page counts in equal shares for its processes.
    for member in members {
        talk::say(member, 0)?;
        let message = member.recv().doing("recv")?;
        let cost: Cost = serde_json::from_slice(message.bytes()).doing("decoding")?;
        sum.processor += cost.processor;
        sum.memory += cost.memory;
        sum.descriptors += cost.descriptors;
    }
    members.iter().try_for_each(|member| talk::say(member, STOP))?;
    let costs =
        [("time", time), ("processor time", sum.processor), ("memory", sum.memory), ("descriptors", sum.descriptors)];
    let found = costs.map(|(name, cost)| (name.to_owned(), cost)).into();
    Ok(Report { count: channels, found, ..Report::default() })
}

/// Runs a member of the mesh: receives its ends, and sends and receives one message through each.
pub(super) fn member(controller: &Channel) -> Result<Share> {
    raise_descriptor_limit()?;
    let (memory, descriptors) = (held_memory()?, descriptors()?);
    let processor = clock::cpu();
    talk::say(controller, 0)?;
    let mut ends = Vec::new();
    let mut heard: Words = [0; SIZE];
    loop {
        let received = talk::hear(controller, &mut heard)?;
        if payload::number(&heard) == STOP {
            break;
        }
        ends.push(talk::one_end(received)?);
    }
    ends.iter().try_for_each(|end| talk::say(end, 0))?;
    ends.iter().try_for_each(|end| talk::hear_number(end, 0))?;
    let processor = (clock::cpu() - processor) as f64;
    talk::say(controller, 0)?;
    talk::hear_number(controller, 0)?;
    let cost = Cost { processor, memory: held_memory()? - memory, descriptors: self::descriptors()? - descriptors };
    controller.send(&serde_json::to_vec(&cost).doing("encoding")?).doing("send")?;
    talk::hear_number(controller, STOP)?;
    Ok(Share::default())
}

/// Returns the number of descriptors of this process.
fn descriptors() -> Result<f64> {
    Ok(fs::read_dir("/proc/self/fd").doing("/proc/self/fd")?.count() as f64)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use strait::{Channel, Options};

    use super::{control, member};

    /// Runs a mesh of three members, in threads of this process, and `beside` as a fourth member.
    fn mesh(beside: impl FnOnce(Channel) + Send) -> Vec<bool> {
        let (to_members, mut members): (Vec<_>, Vec<_>) = (0..4).map(|_| Channel::pair().unwrap()).unzip();
        thread::scope(|scope| {
            let last = members.pop().unwrap();
            let beside = scope.spawn(|| beside(last));
            let members: Vec<_> =
                members.into_iter().map(|channel| scope.spawn(move || member(&channel).is_ok())).collect();
            let report = control(&to_members, &Options::new(), true);
            drop(to_members);
            beside.join().unwrap();
            let is_whole = report.is_ok_and(|report| report.count == 6 && report.found["time"] > 0.0);
            [is_whole].into_iter().chain(members.into_iter().map(|member| member.join().unwrap())).collect()
        })
    }

    #[test]
    fn each_member_hears_every_other() {
        assert_eq!(mesh(|channel| drop(member(&channel).unwrap())), [true; 4]);
    }

    #[test]
    fn a_member_that_fails_ends_the_mesh() {
        // The member ends when it has received its first end.
        let fails = |channel: Channel| {
            super::talk::say(&channel, 0).unwrap();
            drop(channel.recv().unwrap());
        };
        assert_eq!(mesh(fails), [false; 4]);
    }
}
