"""Programs in Rust, C, C++ and Python over one channel.

`tools/python` builds the Rust program and the library for C, and says where they are: `STRAIT_TYPED_PEER`,
`STRAIT_INCLUDE` and `STRAIT_LIBRARY`. Without them these tests are left out."""

import os
import pathlib
import subprocess
import sys

import pytest

import strait
from conftest import LONG

HERE = pathlib.Path(__file__).parent / "languages"
numpy = pytest.importorskip("numpy")


@pytest.fixture(scope="module")
def rust():
    path = os.environ.get("STRAIT_TYPED_PEER")
    if not path:
        pytest.skip("STRAIT_TYPED_PEER does not name the program plain_peer: run tools/python")
    return path


@pytest.fixture(scope="module")
def programs(rust, tmp_path_factory):
    """The command of the program that sends messages back, in each language."""
    include, library = os.environ.get("STRAIT_INCLUDE"), os.environ.get("STRAIT_LIBRARY")
    if not include or not library:
        pytest.skip("STRAIT_INCLUDE and STRAIT_LIBRARY do not name the library for C: run tools/python")
    target = tmp_path_factory.mktemp("languages")
    found = {"Python": [sys.executable, str(HERE / "echo.py")], "Rust": [rust, "echo"]}
    for language, compiler, standard, file in (("C", "cc", "c17", "echo.c"), ("C++", "c++", "c++20", "echo.cpp")):
        out = str(target / file.replace(".", "-"))
        subprocess.run(
            [compiler, f"-std={standard}", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-I", include, str(HERE / file), library,
             "-lpthread", "-ldl", "-lm", "-o", out],
            check=True,
        )
        found[language] = [out]
    return found


LANGUAGES = ("Python", "Rust", "C", "C++")


@pytest.mark.parametrize("other", LANGUAGES)
@pytest.mark.parametrize("one", LANGUAGES)
def test_23_bytes_and_handles_go_through_two_languages_and_back(programs, one, other, tmp_path):
    process, connection = strait.spawn([*programs[one], *programs[other]])
    with connection:
        for size in (0, 1, 100, 70_000, 3 << 20):
            data = os.urandom(size)
            connection.send_bytes(data, timeout=LONG)
            assert connection.recv_bytes(timeout=LONG) == data
        (tmp_path / "file").write_text("in the file")
        mine, theirs = strait.pair()
        mine.send_bytes(b"over the end")
        with open(tmp_path / "file") as file:
            connection.send([file, strait.Region.sealed(b"in the region"), theirs], timeout=LONG)
        file, region, end = connection.recv(timeout=LONG)
        with os.fdopen(file.detach()) as file:
            assert file.read() == "in the file"
        assert region.read() == b"in the region"
        assert end.recv_bytes(timeout=LONG) == b"over the end"
        end.send_bytes(b"and back")
        assert mine.recv_bytes(timeout=LONG) == b"and back"
    assert process.wait(LONG) == 0


def test_a_rust_program_with_typed_values_is_the_child(rust, tmp_path):
    process, connection = strait.spawn([rust])
    (tmp_path / "file").write_text("in the file")
    with connection:
        for numbers in (
            numpy.arange(6, dtype="f8").reshape(2, 3), numpy.arange(1 << 17, dtype="f8"),
            numpy.arange(1 << 20, dtype="f8").reshape(1 << 10, 1 << 10), numpy.zeros((0, 4)),
        ):
            copies, copy = strait.pair()
            ours, back = strait.pair()
            into, source = strait.DataPipe(4096)
            target, out = strait.DataPipe(4096)
            into.write_whole(b"stream")
            with open(tmp_path / "file") as file:
                job = {
                    "name": "straße", "numbers": numbers, "file": file, "region": strait.Region.sealed(b"12345"),
                    "from": source, "to": target, "copy": copy, "back": back, "unknown": [1, {"x": None}],
                }
                connection.send(job, timeout=LONG)
            # The first message of each typed channel has no object.
            for answer in (copies.recv(timeout=LONG), connection.recv(timeout=LONG)):
                assert (answer["name"], answer["text"], answer["bytes_in_region"]) == ("STRASSE", "in the file", 5)
                assert answer["sum"] == numbers.sum()
                assert (answer["doubled"] == 2 * numbers).all() and answer["doubled"].shape == numbers.shape
            answer["back"].send_bytes(b"round trip")
            assert ours.recv_bytes(timeout=LONG) == b"round trip"
            assert out.read_whole(6, timeout=LONG) == b"stream"
    assert process.wait(LONG) == 0


def test_a_rust_program_with_typed_values_is_the_parent(rust):
    done = subprocess.run(
        [rust, sys.executable, str(HERE / "answer.py")], capture_output=True, text=True, timeout=2 * LONG
    )
    assert (done.returncode, done.stdout) == (0, "all right\n"), done.stderr


def first_message(codec):
    return b"\xf5strait\x01" + bytes([codec, 0, 3, 2, 0, 0, 0, 0]) + bytes(16) + b"u32()"


@pytest.mark.parametrize("name, codec, number", [
    ("plain", strait.codec.plain, 2), ("json", strait.codec.json, 3),
])
def test_a_first_message_is_passed_over_and_one_of_another_codec_is_malformed(name, codec, number):
    one, other = strait.pair(codec=codec)
    with one, other:
        one.send_bytes(first_message(number))
        with pytest.raises(strait.WouldBlock):
            other.recv(timeout=0)
        for _ in range(3):
            one.send_bytes(first_message(number))
        one.send("value")
        one.send_bytes(first_message(1))
        one.send("later")
        assert other.recv(timeout=LONG) == "value"
        with pytest.raises(strait.Malformed, match="Postcard"):
            other.recv(timeout=LONG)
        assert other.recv(timeout=LONG) == "later"


def test_first_messages_without_end_are_malformed(pair):
    one, other = pair
    for _ in range(200):
        one.send_bytes(first_message(2))
    one.send("value")
    for _ in range(3):
        with pytest.raises(strait.Malformed, match="in a row"):
            other.recv(timeout=LONG)
    assert other.recv(timeout=LONG) == "value"
