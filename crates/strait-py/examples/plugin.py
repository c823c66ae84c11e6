"""A host that does not trust its plug-in: limits, timeouts, and plain values only. The plug-in sends what it should not."""

import sys

import strait

PLUGIN = """
import os, pickle, strait
up = strait.parent()
class Bomb:
    def __reduce__(self): return os.system, ("echo the plug-in runs code in the host",)
assert up.recv() == {"job": 1}
up.send({"result": [1, 2, 3]})
up.send_bytes(pickle.dumps(Bomb()))
up.send_bytes(b"\\xdd\\xff\\xff\\xff\\xff")
up.recv()
"""


def main() -> None:
    strait.set_limits(peer=strait.Limits(descriptors=50))
    process, plugin = strait.spawn([sys.executable, "-c", PLUGIN], peer_memory=64 << 20)
    plugin.send({"job": 1})
    print(plugin.recv(timeout=60))
    for _ in range(2):
        try:
            plugin.recv(timeout=60)
        except strait.Malformed as error:
            print("refused:", error)
    try:
        plugin.recv(timeout=0.1)
    except strait.TimedOut:
        print("the plug-in is silent: it is ended")
    process.kill()
    process.wait()
    plugin.close()


if __name__ == "__main__":
    main()
