"""The examples of the documents, and the stubs."""

import ast
import pathlib
import re

import pytest

import strait
from strait import _native

CRATE = pathlib.Path(__file__).parents[1]
DOCUMENTS = [CRATE / "README.md", CRATE / "../../docs/start/hello-python.md"]
EXAMPLES = [
    pytest.param(example, id=f"{document.name}-{number}")
    for document in DOCUMENTS
    if document.exists()
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", document.read_text(), re.S))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(example):
    exec(compile(example, "example", "exec"), {"__name__": "__main__"})


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
