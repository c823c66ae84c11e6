"""The examples of the documents, and the stubs."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

import strait
from conftest import LONG
from strait import _errors, _native

CRATE = pathlib.Path(__file__).parents[1]
BOOK = CRATE / "../../docs"
DOCUMENTS = [CRATE / "README.md", BOOK / "start/hello-python.md", *sorted((BOOK / "python").glob("*.md"))]
EXAMPLES = [
    pytest.param(example, id=f"{document.name}-{number}")
    for document in DOCUMENTS
    if document.exists()
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", document.read_text(), re.S))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(example):
    exec(compile(example, "example", "exec"), {"__name__": "__main__"})


PROGRAMS = {
    "echo": "hello\n42\n[1.5, None, b'bytes']\n",
    "event_loop": "from a socket\n2\n",
    "frames": "50 frames of 1000000 bytes through three processes, every one right\n",
    "image_pipeline": "frame 4 has 7\n",
    "plugin": "refused: ",
    "rpc": "[0, 1, 3, 6, 10, 15, 21, 28]\n",
    "worker": "the worker of job 5 has ended with -9: another worker repeats the job\n"
    "[0, 1, 4, 9, 16, 25, 36, 49, 64, 81, 100, 121]\n",
}
ARGUMENTS = {"frames": ["50", "1000000"]}


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_example_program_prints_what_it_should(program, tmp_path):
    command = [sys.executable, CRATE / "examples" / f"{program}.py", *ARGUMENTS.get(program, [])]
    environment = {**os.environ, "STRAIT_DIR": str(tmp_path)}
    tmp_path.chmod(0o700)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, env=environment)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    lines = sorted(PROGRAMS[program].splitlines())
    assert all(any(found.startswith(line) for found in done.stdout.splitlines()) for line in lines), done.stdout
    assert "runs code" not in done.stdout


def test_each_example_program_is_tested():
    assert {path.stem for path in (CRATE / "examples").glob("*.py")} == set(PROGRAMS)


def test_the_stubs_name_what_the_module_has():
    stub = ast.parse((CRATE / "python/strait/_native.pyi").read_text())
    for node in stub.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
            continue
        found = getattr(_native, node.name)
        if isinstance(node, ast.ClassDef):
            named = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            public = {name for name in vars(found) if not name.startswith("_")}
            # Python shows the buffer of a class as `__buffer__` from 3.12 on.
            assert public - {"VARIABLE"} <= named <= {*dir(found), "__buffer__"}


def test_each_exported_name_exists_and_each_exception_is_one_of_the_package():
    for name in strait.__all__:
        value = getattr(strait, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, strait.StraitError) and value.__module__ == "strait" and value.__doc__
            assert isinstance(value.passes, bool) and str(value("text")) == "text"


def test_each_exception_is_exported():
    errors = {name for name, value in vars(_errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert set(_errors.__all__) == errors - {"Exception"} and errors <= set(strait.__all__)


def builtin_bases(exception):
    """Returns the names of the builtin classes of an exception, without the bases of others among them."""
    common = {Exception, BaseException, object}
    every = [base for base in exception.__mro__ if base.__module__ == "builtins" and base not in common]
    return [base.__name__ for base in every if sum(issubclass(other, base) for other in every) == 1]


def errors_by_exception():
    """Returns the names of the errors of the Rust library that become each exception."""
    source = (CRATE / "../strait/src/error.rs").read_text()
    variants = re.search(r"pub enum Error \{\n(.*?)\n\}", source, re.S)[1]
    left = set(re.findall(r"^    ([A-Z]\w+)", variants, re.M)) - {"Signalled"}
    named = {}
    arms = re.findall(r"^        (Error::.*) => \"(\w+)\",$", (CRATE / "src/errors.rs").read_text(), re.M)
    for errors, exception in arms:
        names = re.findall(r"Error::(\w+)", errors)
        named.setdefault(exception, set()).update(names)
        left -= set(names)
    for variant in ("NotSent", "NotAnswered", "OutcomeUnknown"):
        named.setdefault(variant, set()).add(f"CallError::{variant}")
    return {**named, "StraitError": left}


def test_the_exceptions_are_listed_with_their_builtin_bases_and_their_errors():
    section = re.search(r"^## Python exceptions\n(.*?)^## ", (BOOK / "reference/errors.md").read_text(), re.S | re.M)[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == [f"`{name}`" for name in _errors.__all__]
    errors = errors_by_exception()
    assert len(errors) > 35 and len(errors["StraitError"]) < 10
    for name, row in zip(_errors.__all__, rows, strict=True):
        exception = getattr(strait, name)
        _name, bases, passes, attributes, error = (re.findall(r"`([^`]+)`", cell) or cell for cell in row)
        assert (bases or []) == builtin_bases(exception), name
        assert passes == ("passes" if exception.passes else ""), name
        # The native module sets `errno`, an attribute of each `OSError`.
        own = set(vars(exception).get("__annotations__", {})) - {"passes"}
        assert set(attributes) - {"errno"} == own, name
        assert row[4] and (name not in errors or set(error) == errors[name]), name
