//! iceoryx2 0.9: publishers and subscribers over shared memory.
//!
//! There are two services of byte slices, one for each direction. They lose nothing: the sender waits while the
//! receiver's queue is full. Samples are loaned, filled, and read in place. Spinning, the receiver polls
//! continuously, for which the library is made. To block, the sender notifies a listener of an event service for each
//! message. Several listeners are waited for by the library's `WaitSet`.

use std::os::fd::OwnedFd;

use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::{
    BackpressureStrategy, CallbackProgression, LogLevel, Node, NodeBuilder, ServiceName, WaitSet, WaitSetBuilder, ipc,
    set_log_level,
};

use super::terms::Terms;
use crate::mechanism::hub::{self, Look};
use crate::mechanism::{Ability, End, Hub, Opened, Side};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// The number of samples that a subscriber's queue holds.
const QUEUE: usize = 64;

/// The ports by which each side wakes the other.
#[derive(Debug)]
struct Bells {
    notifier: Notifier<ipc::Service>,
    listener: Listener<ipc::Service>,
}

/// One process's end of two services.
#[derive(Debug)]
pub(crate) struct Iceoryx2 {
    publisher: Publisher<ipc::Service, [u8], ()>,
    subscriber: Subscriber<ipc::Service, [u8], ()>,
    bells: Option<Bells>,
    _node: Node<ipc::Service>,
}

impl End for Iceoryx2 {
    const NAME: &'static str = "iceoryx2";
    const TITLE: &'static str = "iceoryx2";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] = &[Ability::Stream, Ability::Hub];

    fn open(_: &Work) -> Result<Opened> {
        Terms::open()
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        set_log_level(LogLevel::Fatal);
        let terms = Terms::join(descriptors)?;
        let name = match side {
            Side::First => {
                let name = format!("strait-lab/{:032x}", fastrand::u128(..));
                terms.tell(&name)?;
                name
            }
            Side::Second => terms.hear()?,
        };
        // The first process creates everything before the second opens it, and no message is sent before both processes
        // are ready.
        if side == Side::Second {
            terms.hear::<()>()?;
        }
        let end = Self::over(work, side, &name)?;
        terms.tell(&())?;
        if side == Side::First {
            terms.hear::<()>()?;
        }
        Ok(end)
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let sample = self.publisher.loan_slice_uninit(message.len()).doing("loan_slice_uninit")?;
        if sample.write_from_slice(message).send().doing("send")? != 1 {
            return Err(Trouble::new("the publisher has no subscriber"));
        }
        if let Some(bells) = &self.bells {
            bells.notifier.notify().doing("notify")?;
        }
        Ok(())
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        loop {
            if self.try_recv(buffer)? {
                return Ok(());
            }
            match &self.bells {
                // A notification may be about a message that was received before. Then there is none, and the wait
                // goes on.
                Some(bells) => drop(bells.listener.blocking_wait_one().doing("blocking_wait_one")?),
                None => std::hint::spin_loop(),
            }
        }
    }

    fn hub(ends: Vec<Self>, work: &Work) -> Result<Box<dyn Hub>> {
        if work.wait == Wait::Spin {
            return Ok(hub::spinning(ends));
        }
        let set = WaitSetBuilder::new().create().doing("making a wait set")?;
        Ok(hub::in_turn(ends, move |ends| wait_for_any(&set, ends)))
    }
}

impl Look for Iceoryx2 {
    #[inline]
    fn try_recv(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let Some(sample) = self.subscriber.receive().doing("receive")? else { return Ok(false) };
        if sample.len() != buffer.len() {
            return Err(Trouble::new(format!("a message of {} bytes arrived", sample.len())));
        }
        buffer.copy_from_slice(&sample);
        Ok(true)
    }
}

fn wait_for_any(set: &WaitSet<ipc::Service>, ends: &[Iceoryx2]) -> Result<()> {
    // An attachment borrows its listener, so each wait makes an attachment. Attaching only stores a number.
    let listeners = || ends.iter().filter_map(|end| Some(&end.bells.as_ref()?.listener));
    let attached = listeners().map(|listener| set.attach_notification(listener));
    let attached: Vec<_> = attached.collect::<std::result::Result<_, _>>().doing("attach_notification")?;
    set.wait_and_process_once(|_| CallbackProgression::Continue).doing("wait_and_process_once")?;
    drop(attached);
    // If a notification arrives after this loop, the next look finds its message.
    for listener in listeners() {
        listener.try_wait_all(|_| {}).doing("try_wait_all")?;
    }
    Ok(())
}

impl Iceoryx2 {
    fn over(work: &Work, side: Side, name: &str) -> Result<Self> {
        let node = NodeBuilder::new().create::<ipc::Service>().doing("making a node")?;
        let name_of = |what: &str| ServiceName::new(&format!("{name}/{what}")).doing("making the service's name");
        let (out, inward) = side.of("there", "back");
        let service = |what: &str| {
            node.service_builder(&name_of(what)?)
                .publish_subscribe::<[u8]>()
                .enable_safe_overflow(false)
                .history_size(0)
                .subscriber_max_buffer_size(QUEUE)
                .max_publishers(1)
                .max_subscribers(1)
                .open_or_create()
                .doing("making the service")
        };
        let publisher = service(out)?
            .publisher_builder()
            .initial_max_slice_len(work.size)
            .max_loaned_samples(1)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()
            .doing("making the publisher")?;
        let subscriber = service(inward)?.subscriber_builder().create().doing("making the subscriber")?;
        let bells = if work.wait == Wait::Block {
            let events = |what: &str| {
                let name = name_of(&format!("{what}-bell"))?;
                node.service_builder(&name).event().open_or_create().doing("making the event service")
            };
            Some(Bells {
                notifier: events(out)?.notifier_builder().create().doing("making the notifier")?,
                listener: events(inward)?.listener_builder().create().doing("making the listener")?,
            })
        } else {
            None
        };
        Ok(Self { publisher, subscriber, bells, _node: node })
    }
}
