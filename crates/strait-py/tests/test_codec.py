"""Classes that a program adds to the codec `plain`, and the reason of a close during another thread's call."""

import threading

import pytest

import strait
from conftest import LONG
from strait import codec


class Money:
    def __init__(self, cents):
        self.cents = cents

    def __eq__(self, other):
        return isinstance(other, Money) and other.cents == self.cents

    def __hash__(self):
        return hash(self.cents)

    @staticmethod
    def of(data):
        if len(data) != 8:
            raise ValueError("8 bytes, please")
        return Money(int.from_bytes(data, "big"))


class Other:
    pass


codec.register(Money, 40, lambda money: money.cents.to_bytes(8, "big"), Money.of)


def test_an_object_of_a_registered_class_arrives_as_one(pair, child):
    one, other = pair
    value = {"price": Money(1250), Money(1): [Money(2), {Money(3)}]}
    one.send(value)
    assert other.recv() == value
    process, connection = child(
        "value = up.recv()\n"
        "up.send([type(value).__name__, value.code, value.data])\n"
        "up.send(value)\n"
    )
    # A process that has not registered the class can send the object on.
    connection.send(Money(7))
    assert connection.recv(timeout=LONG) == ["Unknown", 40, (7).to_bytes(8, "big")]
    assert connection.recv(timeout=LONG) == Money(7)
    process.wait(LONG)


def test_wrong_bytes_of_a_registered_class_are_malformed(pair):
    one, other = pair
    one.send(strait.Unknown(40, b"short"))
    with pytest.raises(strait.Malformed, match=r"Money \(extension type 40\).*8 bytes, please"):
        other.recv()
    one.send(1)
    assert other.recv() == 1


def test_what_dumps_returns_must_be_bytes_and_subclasses_are_not_carried(pair):
    one, other = pair

    class Sub(Money):
        pass

    class Wrong:
        pass

    codec.register(Wrong, 41, lambda _: "text", lambda data: Wrong())
    for value in (Wrong(), Sub(1)):
        with pytest.raises(strait.NotPlain):
            one.send(value)
    assert not other.poll()


@pytest.mark.parametrize("arguments, error", [
    ((Other, 15), ValueError), ((Other, 128), ValueError), ((Other, -1), ValueError), ((Other, 40), ValueError),
    ((Money, 42), ValueError), ((dict, 50), ValueError), ((bool, 50), ValueError), ((strait.Connection, 50), ValueError),
    (("Other", 50), TypeError), ((Other, "50"), TypeError), ((Other, True), TypeError),
])
def test_a_registration_that_cannot_be_is_refused(arguments, error):
    with pytest.raises(error):
        codec.register(*arguments, lambda _: b"", lambda _: None)
    with pytest.raises(strait.NotPlain):
        codec.plain.dumps(Other())


def test_the_reason_of_a_close_reaches_the_peer_while_another_thread_receives(child):
    """The thread that waits holds the channel when `close` returns, and is the last to let go of it."""
    process, connection = child(
        "reasons = []\n"
        "for _ in range(20):\n"
        "    end = up.recv()\n"
        "    up.send('ready')\n"
        "    try: end.recv(timeout=60)\n"
        "    except strait.PeerClosed as error: reasons.append(error.reason)\n"
        "up.send(reasons)\n"
    )
    for reason in range(1, 21):
        mine, theirs = strait.pair()
        connection.send(theirs)
        assert connection.recv(timeout=LONG) == "ready"
        begun = threading.Event()

        def wait(end=mine, begun=begun):
            begun.set()
            with pytest.raises(strait.Closed):
                end.recv(timeout=LONG)

        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait(LONG)
        mine.close(reason)
        for thread in threads:
            thread.join(LONG)
    assert connection.recv(timeout=LONG) == list(range(1, 21))
    process.wait(LONG)


class Receives:
    pass


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_a_receive_within_a_receive_does_not_wait_for_itself(pair, size):
    one, other = pair
    inner = []
    codec.register(Receives, 42, lambda _: b"", lambda _: inner.append(other.recv(timeout=LONG)))
    one.send([Receives(), bytes(size)])
    one.send("next")
    # A long message is decoded where the peer has put it.
    assert other.recv(timeout=LONG) == [None, bytes(size)]
    assert inner == ["next"]
