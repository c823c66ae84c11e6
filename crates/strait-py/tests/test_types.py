"""Behaviour 24: the types of the package, of its stubs and of the examples."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent

MYPY = [sys.executable, "-m", "mypy", "--no-error-summary"]
STUBTEST = [
    sys.executable, "-m", "mypy.stubtest", "--concise", "--mypy-config-file", "pyproject.toml", "--allowlist",
    "tests/stubtest.txt", "--ignore-unused-allowlist", "strait._native",
]
PYRIGHT = [sys.executable, "-m", "pyright", "--level", "error", "--pythonpath", sys.executable, "python/strait", "examples"]


@pytest.mark.parametrize("command", [
    pytest.param([*MYPY, "python/strait"], id="mypy"),
    pytest.param([*MYPY, "examples"], id="mypy-examples"),
    # The stubs against the native module.
    pytest.param(STUBTEST, id="stubtest"),
    pytest.param(PYRIGHT, id="pyright"),
])
def test_24_types_are_clean(command):
    # Strictness is set in pyproject.toml.
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
