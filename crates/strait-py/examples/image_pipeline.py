"""Frames through two stages in processes of their own. Each frame above 4 MiB is sealed by its first send, without a copy, and
copied by later ones. Each stage may write to its own frame."""

import sys

import numpy

import strait

SHAPE = (1080, 1920, 3)

STAGE = """
import sys
import strait
up = strait.parent()
for frame in up:
    frame += int(sys.argv[1])
    up.send(frame)
"""


def main() -> None:
    stages = [strait.spawn([sys.executable, "-c", STAGE, str(number)]) for number in (1, 2)]
    for number in range(5):
        frame = strait.empty(SHAPE, "u1")
        frame[:] = number
        for _process, connection in stages:
            connection.send(frame)
            frame = connection.recv(timeout=60)
        assert isinstance(frame, numpy.ndarray) and (frame == number + 3).all()
        print("frame", number, "has", int(frame[0, 0, 0]))
    for process, connection in stages:
        connection.close()
        process.wait(60)


if __name__ == "__main__":
    main()
