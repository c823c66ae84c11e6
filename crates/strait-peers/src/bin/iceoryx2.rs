//! iceoryx2: publishers and subscribers over shared memory.

use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::{BackpressureStrategy, LogLevel, Node, NodeBuilder, ServiceName, ipc, set_log_level};
use strait_peers::{Client, Meeting, Peer, Result, Row, Service, Touch};

fn main() -> Result<()> {
    strait_peers::main(Peer {
        title: "iceoryx2",
        default: "publish-subscribe, and an event for each message",
        tuned: Some("publish-subscribe, polled without end"),
        serve,
        connect,
    })
}

/// One process's ports of both directions.
struct Ports {
    publisher: Publisher<ipc::Service, [u8], ()>,
    subscriber: Subscriber<ipc::Service, [u8], ()>,
    bells: Option<(Notifier<ipc::Service>, Listener<ipc::Service>)>,
    _node: Node<ipc::Service>,
}

impl Ports {
    fn open(meeting: &Meeting, out: &str, inward: &str) -> Result<Self> {
        set_log_level(LogLevel::Fatal);
        let node = NodeBuilder::new().create::<ipc::Service>()?;
        let name = |word: &str| ServiceName::new(&format!("{}/{word}", meeting.name()));
        let service = |word: &str| -> Result<_> {
            // Nothing is lost: the sender waits while the queue is full.
            Ok(node
                .service_builder(&name(word)?)
                .publish_subscribe::<[u8]>()
                .enable_safe_overflow(false)
                .subscriber_max_buffer_size(64)
                .open_or_create()?)
        };
        let publisher = service(out)?
            .publisher_builder()
            .initial_max_slice_len(meeting.size)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()?;
        let subscriber = service(inward)?.subscriber_builder().create()?;
        let bells = if meeting.tuned() {
            None
        } else {
            let event = |word: &str| -> Result<_> { Ok(node.service_builder(&name(word)?).event().open_or_create()?) };
            Some((
                event(&format!("{out}-bell"))?.notifier_builder().create()?,
                event(&format!("{inward}-bell"))?.listener_builder().create()?,
            ))
        };
        Ok(Self { publisher, subscriber, bells, _node: node })
    }

    fn send(&self, message: &[u8]) -> Result<()> {
        self.publisher.loan_slice_uninit(message.len())?.write_from_slice(message).send()?;
        self.notify()
    }

    fn notify(&self) -> Result<()> {
        if let Some((notifier, _)) = &self.bells {
            notifier.notify()?;
        }
        Ok(())
    }

    /// Calls `take` with the next message, in place.
    fn receive<T>(&self, take: impl FnOnce(&[u8]) -> T) -> Result<T> {
        loop {
            if let Some(sample) = self.subscriber.receive()? {
                return Ok(take(&sample));
            }
            match &self.bells {
                Some((_, listener)) => {
                    listener.blocking_wait(|_| {})?;
                }
                None => std::hint::spin_loop(),
            }
        }
    }
}

fn serve(meeting: &Meeting, ready: &mut dyn FnMut(&str)) -> Result<()> {
    let ports = Ports::open(meeting, "back", "there")?;
    ready("");
    let in_place = matches!(meeting.row, Row::InPlace(_));
    let (mut service, mut request, mut reply) = (Service::default(), Vec::new(), Vec::new());
    loop {
        let answers = if in_place {
            ports.receive(|message| service.answer(message, &mut reply))?
        } else {
            // The user has the bytes of a message in its own memory.
            ports.receive(|message| {
                request.clear();
                request.extend_from_slice(message);
            })?;
            service.answer(&request, &mut reply)
        };
        if answers {
            ports.send(&reply)?;
        }
    }
}

fn connect(meeting: &Meeting, _: &str) -> Result<Box<dyn Client>> {
    Ok(Box::new(Iceoryx2(Ports::open(meeting, "there", "back")?)))
}

struct Iceoryx2(Ports);

impl Client for Iceoryx2 {
    fn round_trip(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        self.0.send(request)?;
        self.0.receive(|message| {
            reply.clear();
            reply.extend_from_slice(message);
        })
    }

    fn post(&mut self, message: &[u8]) -> Result<()> {
        self.0.send(message)
    }

    fn in_place(&mut self, head: &[u8], len: usize, touch: Touch) -> Result<()> {
        let mut sample = self.0.publisher.loan_slice_uninit(len)?;
        let payload = sample.payload_mut();
        if touch == Touch::Pages {
            for at in (4096..len).step_by(4096) {
                payload[at].write(head[8]);
            }
        }
        for (to, from) in payload.iter_mut().zip(head) {
            to.write(*from);
        }
        for to in &mut payload[len - 8..] {
            to.write(head[8]);
        }
        // SAFETY: every byte value is valid, and the memory is mapped: bytes not written by this message are bytes of
        // earlier messages, or zeros.
        let sample = unsafe { sample.assume_init() };
        sample.send()?;
        self.0.notify()?;
        self.0.receive(|_| ())
    }
}
