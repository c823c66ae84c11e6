"""tools/python and the full length of the tests: what may be missing, and what may not."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from conftest import LONG

HERE = pathlib.Path(__file__).parent

SKIPPING = """
import pytest
def test_torch(): pytest.skip("could not import 'torch': No module named 'torch'")
def test_does_not_apply(): pytest.skip("does not apply: fork pickles nothing")
@pytest.mark.skip(reason="Python 3.99 is not on this machine")
def test_python(): pass
def test_missing(): pytest.importorskip("a_library_that_is_nowhere")
"""


@pytest.mark.parametrize("full", [False, True], ids=["quick", "full"])
def test_only_torch_uvloop_and_versions_of_python_may_be_missing_at_full_length(tmp_path, full):
    shutil.copy(HERE / "conftest.py", tmp_path)
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    (tmp_path / "test_file.py").write_text("import pytest\npytest.importorskip('a_library_that_is_nowhere')\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "STRAIT_LONG_TESTS": "1" if full else ""}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LONG)
    last = done.stdout.splitlines()[-1]
    if full:
        assert done.returncode == 1 and last.startswith("1 failed, 3 skipped, 1 error"), done.stdout
        assert "could not import 'a_library_that_is_nowhere'" in done.stdout
    else:
        assert done.returncode in (0, 5) and last.startswith("5 skipped"), done.stdout


@pytest.mark.parametrize("full", [False, True], ids=["quick", "full"])
def test_a_machine_without_python_fails_only_at_full_length(tmp_path, full):
    (tmp_path / "tools").mkdir()
    (tmp_path / "crates/strait-py").mkdir(parents=True)
    script = shutil.copy(HERE.parents[2] / "tools/python", tmp_path / "tools")
    environment = {**os.environ, "PYTHON": str(tmp_path / "nowhere"), "STRAIT_LONG_TESTS": "1" if full else ""}
    done = subprocess.run([script], env=environment, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == (1 if full else 0) and "the Python package was left out" in done.stderr, done.stderr
