"""Internals of libraries are reached from one adapter each, and those libraries have an upper bound."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import penstock

SOURCE = Path(penstock.__file__).parent
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
ADAPTERS = {
    "kernels/cuda/triton_internals.py": ("triton",),
    "kernels/torch_internals.py": ("torch",),
    "http/uvicorn_adapter.py": ("uvicorn", "httptools"),
    "prompt/jinja_internals.py": ("jinja2",),
    "http/parse/json_internals.py": (),  # Python's own
}
# Begin with an underscore, and are documented all the same.
DOCUMENTED = {"_asdict", "_exit", "_fields", "_fields_", "_make", "_replace"}
# Modules and namespaces without documentation, though their names do not say so.
UNDOCUMENTED = (
    "triton.runtime",
    "triton.backends",
    "triton.compiler",
    "triton.knobs",
    "uvicorn.protocols",
    "uvicorn.server",
    "jinja2.compiler",
    "jinja2.environment",
    "json.decoder",
    "json.scanner",
    "torch.ops",
    "llguidance._lib",
)
BOUNDED = {library for libraries in ADAPTERS.values() for library in libraries} - {"triton"}  # torch brings its own


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in DOCUMENTED


def undocumented(name: str) -> bool:
    return any(f"{name}.".startswith(f"{one}.") for one in UNDOCUMENTED)


def reached(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a module uses what libraries do not document."""
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] not in ("penstock", "__future__"):
                names = [f"{module}.{alias.name}" for alias in node.names]
            case ast.Constant(value=str(text)) if re.fullmatch(r"[a-z_0-9]+(\.\w+)+", text):  # of `import_module`
                names = [text]
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute():
                whole = ast.unparse(node)
                if private(node.attr) or undocumented(whole):
                    yield node.lineno, whole
                continue
        for name in names:
            if undocumented(name) or any(map(private, name.split("."))):
                yield node.lineno, name  # type: ignore[attr-defined]


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).as_posix() not in ADAPTERS)


def test_internals_are_reached_from_their_adapter_alone() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {name}"
        for path in modules()
        for line, name in reached(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_is_one(adapter: str) -> None:
    """Else it has no business in the list."""
    assert [*reached(ast.parse((SOURCE / adapter).read_text(encoding="utf-8")))] or adapter.startswith("prompt")


@pytest.mark.parametrize(
    "line",
    [
        "from triton.runtime import _async_compile",
        "from triton.runtime.cache import get_cache_manager",
        "import uvicorn.protocols.http.httptools_impl",
        "from jinja2.utils import _PassArg",
        "torch._C._cuda_getDevice()",
        "torch.ops.mkldnn.anything",
        "item._Namespace__attrs",
        "from json import scanner",
        "importlib.import_module('triton.runtime.cache')",
    ],
)
def test_what_counts_as_internal(line: str) -> None:
    assert [*reached(ast.parse(line))]


@pytest.mark.parametrize("line", ["self._private", "cls._private", "usage._asdict()", "import torch", "os._exit(1)"])
def test_what_does_not(line: str) -> None:
    assert [*reached(ast.parse(line))] == []


@pytest.mark.parametrize("library", sorted(BOUNDED | {"uvloop"}))
def test_a_library_whose_internals_are_used_has_an_upper_bound(library: str) -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    stated = [*project["dependencies"], *project["optional-dependencies"]["torch"]]
    (requirement,) = (one for one in map(Requirement, stated) if one.name.lower() == library)
    assert any(part.operator == "<" for part in requirement.specifier)
    assert metadata.version(library).split("+")[0] in requirement.specifier
