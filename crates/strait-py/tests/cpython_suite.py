"""Runs CPython's own tests of the connections of `multiprocessing` with `strait.mp`.

    python cpython_suite.py fork|spawn|forkserver

Prints the failed tests, and fails unless exactly the EXCUSED tests have failed, each with the listed error.
"""

import multiprocessing
import os
import sys
import unittest
import warnings

EXCUSED = {
    # Tests that write to the descriptor of the connection, which is only for waiting. `send` carries open files.
    "test_fd_transfer": OSError,
    "test_large_fd_transfer": OSError,
    "test_missing_fd_transfer": OSError,
    # A test in which a child and its parent use the same end.
    "test_boundaries": OSError,
    # An abstract socket has no permissions.
    "test_abstract_socket": ValueError,
}

METHOD = sys.argv[1] if __name__ == "__main__" else None
warnings.simplefilter("ignore", DeprecationWarning)
if METHOD:
    multiprocessing.set_start_method(METHOD)

import test._test_multiprocessing as theirs  # noqa: E402

import strait.mp  # noqa: E402


class Mixin(theirs.ProcessesMixin):
    Pipe = staticmethod(strait.mp.Pipe)
    connection = strait.mp


for _base in ("_TestConnection", "_TestListener", "_TestListenerClient", "_TestPoll", "_TestPicklingConnections"):
    _name = "With" + _base[1:]
    globals()[_name] = type(
        _name, (Mixin, getattr(theirs, _base), unittest.TestCase), {"__module__": __name__, "__qualname__": _name}
    )


class WithTestWait(theirs.TestWait):
    def setUp(self):
        self.saved = multiprocessing.Pipe, multiprocessing.connection.wait
        multiprocessing.Pipe, multiprocessing.connection.wait = strait.mp.Pipe, strait.mp.wait

    def tearDown(self):
        multiprocessing.Pipe, multiprocessing.connection.wait = self.saved


class Result(unittest.TextTestResult):
    errors_of_tests = {}

    def addError(self, test, err):  # noqa: N802
        self.errors_of_tests[test.id().split(".")[-1]] = err[1]
        super().addError(test, err)

    def addFailure(self, test, err):  # noqa: N802
        self.errors_of_tests[test.id().split(".")[-1]] = err[1]
        super().addFailure(test, err)


def main():
    suite = unittest.TestSuite()
    for name, case in list(globals().items()):
        if name.startswith("With"):
            suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    with open(os.devnull, "w") as nowhere:
        result = unittest.TextTestRunner(verbosity=0, stream=nowhere, resultclass=Result).run(suite)
    failed = Result.errors_of_tests
    print(f"{METHOD}: {result.testsRun} run, {len(failed)} not passed, {len(result.skipped)} skipped")
    for name, error in failed.items():
        print(f"    {name}: {error!r}"[:200])
    wrong = [name for name in failed if name not in EXCUSED]
    wrong += [name for name, kind in EXCUSED.items() if name in failed and not isinstance(failed[name], kind)]
    # Python 3.13 has 28 tests, and earlier versions have fewer.
    sys.exit(bool(wrong) or result.testsRun < 25)


if __name__ == "__main__":
    main()
