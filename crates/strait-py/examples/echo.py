"""A server that sends back what it receives, and a client, in two processes.

    python echo.py                the client; starts the server as a child
"""

import sys

import strait


def serve() -> None:
    with strait.Listener("python-echo") as listener:
        print("listening", flush=True)
        with listener.accept() as client:
            for item in client:
                client.send(item)


def main() -> None:
    import subprocess

    server = subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    with server.stdout:
        server.stdout.readline()
    with strait.connect("python-echo", timeout=60) as connection:
        for item in ("hello", 42, [1.5, None, b"bytes"]):
            connection.send(item)
            print(connection.recv(timeout=60))
    server.wait(60)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
