"""Connections beside other descriptors in the event loop of the program: here `selectors`. With asyncio use `strait.aio`."""

import selectors
import socket
import sys

import strait

CHILD = """
import strait
up = strait.parent()
for item in up:
    up.send(item + 1)
"""


def main() -> None:
    process, connection = strait.spawn([sys.executable, "-c", CHILD])
    ours, theirs = socket.socketpair()
    selector = selectors.DefaultSelector()
    selector.register(connection.fileno(), selectors.EVENT_READ, "connection")
    selector.register(ours, selectors.EVENT_READ, "socket")
    connection.send(1)
    theirs.send(b"from a socket")
    waiting = {"connection", "socket"}
    while waiting:
        for key, _events in selector.select(timeout=60):
            if key.data == "socket":
                print(ours.recv(100).decode())
                waiting.discard("socket")
            # The descriptor tells that there may be something.
            elif connection.poll(0):
                print(connection.recv())
                waiting.discard("connection")
    selector.close()
    ours.close()
    theirs.close()
    connection.close()
    process.wait(60)


if __name__ == "__main__":
    main()
