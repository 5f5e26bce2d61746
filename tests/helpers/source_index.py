"""An index of the package's sources: texts, and the names that each file defines. For tests of documentation."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import penstock

PACKAGE = Path(penstock.__file__).parent
ROOT = PACKAGE.parents[1]
TOP = re.compile(r"^(?:(?:async )?def|class) (\w+)|^(\w+)(?:: [^=\n]+)? = ", re.MULTILINE)
CLASS = re.compile(r"^class (\w+).*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
MEMBER = re.compile(r"^    (?:(?:async )?def (\w+)|(\w+)(?:: .+| = .+)$)", re.MULTILINE)


@cache
def sources() -> dict[str, str]:
    """Path relative to the package -> text, of Python and C++ files."""
    paths = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".cpp", ".h")]
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in paths}


@cache
def symbols(path: str) -> frozenset[str]:
    """Top-level names of a Python file and members of its classes as Class.member; all words of a C++ file."""
    text = sources()[path]
    if not path.endswith(".py"):
        return frozenset(re.findall(r"\w+", text))
    names = {first or second for first, second in TOP.findall(text)}
    for match in CLASS.finditer(text):
        names.update(f"{match[1]}.{first or second}" for first, second in MEMBER.findall(match[0]))
    return frozenset(names)
