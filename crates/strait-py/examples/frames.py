"""Three processes pass large frames on: a camera fills a frame, a filter changes it in place, a screen looks at it.

    python frames.py [NUMBER [BYTES]]      200 frames of 8 MiB by default

    camera --index--> filter --index--> screen
       ^                                   |
       +------- index of a free frame -----+

The frames lie in a few regions, which the camera makes once and gives to the other two processes. A message is the
index of a region, so no frame is copied. The process that has received an index owns the frame until it sends the
index on. The processes have to trust each other in this respect: hence `trust=True`. Frames for a process that is not
trusted are in `image_pipeline.py`. If one of the three processes dies, the other two are notified at once, and end.
"""

import subprocess
import sys
import time
from typing import Any

import numpy

import strait

FRAMES = 4
NUMBER = 8
"""The bytes of the number with which each frame begins."""

Frame = numpy.ndarray[Any, Any]


def array_of(region: object) -> Frame:
    assert isinstance(region, strait.Region)
    return region.array(len(region), "u1", trust=True)


def taken(index: object) -> int:
    """Returns the index of a frame that this process owns from now on."""
    assert isinstance(index, int) and 0 <= index < FRAMES
    return index


def begin() -> tuple[list[Frame], strait.Connection, strait.Connection]:
    """Receives the frames, and the connections to the process before and to the next one."""
    with strait.parent() as camera:
        work = camera.recv(timeout=60)
    assert isinstance(work, dict)
    return [array_of(region) for region in work["frames"]], work["before"], work["next"]


def invert() -> None:
    frames, before, following = begin()
    for index in before:
        pixels = frames[taken(index)][NUMBER:]
        numpy.invert(pixels, out=pixels)
        following.send(index, timeout=60)


def look() -> None:
    frames, before, following = begin()
    for number, index in enumerate(before):
        frame = frames[taken(index)]
        pixels = frame[NUMBER:]
        assert int(frame[:NUMBER].view("u8")[0]) == number and pixels.min() == pixels.max() == 255 - number % 251
        following.send(index, timeout=60)


def camera(count: int, size: int) -> None:
    to_filter, filter_before = strait.pair()
    filter_next, screen_before = strait.pair()
    screen_next, from_screen = strait.pair()
    regions = [strait.Region(size, name="frames") for _ in range(FRAMES)]

    def start(role: str, before: strait.Connection, following: strait.Connection) -> subprocess.Popen[bytes]:
        process, connection = strait.spawn([sys.executable, __file__, role])
        connection.send({"frames": regions, "before": before, "next": following}, timeout=60)
        connection.close()
        return process

    processes = [start("filter", filter_before, filter_next), start("screen", screen_before, screen_next)]
    frames = [array_of(region) for region in regions]
    begun = time.monotonic()
    for number in range(count):
        # The first frames are free from the beginning; later ones come back from the screen.
        index = number if number < FRAMES else taken(from_screen.recv(timeout=60))
        frames[index][:] = number % 251
        frames[index][:NUMBER].view("u8")[0] = number
        to_filter.send(index, timeout=60)
    for _ in range(min(count, FRAMES)):
        from_screen.recv(timeout=60)
    took = time.monotonic() - begun
    print(f"{count} frames of {size} bytes through three processes, every one right")
    print(f"{count / took:.0f} frames a second")

    # The filter ends when the camera closes its connection, and the screen when the filter does.
    to_filter.close()
    from_screen.close()
    for process in processes:
        if process.wait(60) != 0:
            raise SystemExit("a process failed")


def main() -> None:
    role = sys.argv[1] if len(sys.argv) > 1 else "200"
    if role in ("filter", "screen"):
        try:
            invert() if role == "filter" else look()
        except strait.PeerClosed:
            # The neighbour has ended, so the work has ended too.
            pass
    else:
        camera(int(role), int(sys.argv[2]) if len(sys.argv) > 2 else 8 << 20)


if __name__ == "__main__":
    main()
