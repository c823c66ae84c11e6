"""Requests and replies: a server process computes, and several threads of the client call it at once."""

import concurrent.futures
import sys

import strait

SERVER = """
import strait
strait.Caller(strait.parent()).serve(lambda numbers: sum(numbers))
"""


def main() -> None:
    process, connection = strait.spawn([sys.executable, "-c", SERVER])
    client = strait.Caller(connection)

    def ask(number: int) -> object:
        return client.call(list(range(number)), timeout=60)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        print(list(pool.map(ask, range(1, 9))))
    client.close()
    process.wait(60)


if __name__ == "__main__":
    main()
