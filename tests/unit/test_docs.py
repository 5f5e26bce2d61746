"""The documentation against the code: paths, names, links and flags that it quotes exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import click
import pytest

from helpers.source_index import PACKAGE, ROOT, sources, symbols
from penstock.cli import penstock

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BASES = (ROOT, PACKAGE, PACKAGE / "kernels" / "cpu", ROOT / "tests")
# Files of others: models, examples, and what a start or a build leaves.
FOREIGN = {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "file.json", "ui_dist"}
FOREIGN |= {"training.json", "constraints-hashed.txt"}
GENERATED = {"docs/reference/settings.md", "docs/reference/api.md"}  # by tools/docs_site.py
FOREIGN_FLAGS = {"--upgrade", "--inplace", "--require-hashes"}  # of pip and setuptools
SUFFIXES = r"\.(?:py|tsx?|cpp|h|md|toml|json|yml|txt|service)"
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def quoted(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


@cache
def tree() -> frozenset[str]:
    """Files and their folders, relative to each folder that the documentation starts from, and their names."""
    tops = [ROOT / name for name in ("src", "tests", "bench", "tools", "docs", "deploy", "ui/src")]
    files = [path for top in tops for path in top.rglob("*.*") if path.is_file() and path.suffix != ".pyc"]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    paths = {path for file in files for path in (file, *file.parents) if path.is_relative_to(ROOT)}
    relative = [path.relative_to(base).as_posix() for path in paths for base in BASES if path.is_relative_to(base)]
    return frozenset([*relative, *(path.name for path in paths)])


def is_path(text: str) -> bool:
    if re.fullmatch(rf"[\w./-]*\w{SUFFIXES}", text):
        return not text.startswith("/")
    return bool(re.fullmatch(r"[\w-]+/[\w./-]*", text)) and text.split("/")[0] in folders()


@cache
def folders() -> frozenset[str]:
    return frozenset(path.name for base in (ROOT, PACKAGE) for path in base.iterdir() if path.is_dir())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    paths = [text.rstrip("/") for text in quoted(page) if is_path(text)]
    assert [path for path in paths if path not in tree() and Path(path).name not in FOREIGN] == []


@cache
def definitions() -> dict[str, set[str]]:
    """Each class of the package with its members, and each package with its modules and exports."""
    found: dict[str, set[str]] = {}
    for path, text in sources().items():
        if not path.endswith(".py"):
            continue
        for name in symbols(path):
            owner, _, member = name.partition(".")
            found.setdefault(owner, set()).add(member)
        module = Path(path)
        package = found.setdefault(module.parent.name, {module.stem})
        package.add(module.stem)
        if module.name == "__init__.py":
            package.update(re.findall(r'^    "(\w+)",$', text, re.MULTILINE))  # __all__
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dotted_names_exist(page: Path) -> None:
    """`Class.member`, and `package.name`; other dotted names are fields of bodies and the like."""
    missing = []
    for text in quoted(page):
        match = re.match(r"([A-Z]\w+|flow|observe|store)\.(\w+)(?:\(.*\))?$", text)
        if match and not is_path(text) and match[1] in definitions() and match[2] not in definitions()[match[1]]:
            missing.append(text)
    assert missing == []


@pytest.mark.parametrize("name", ["docs/ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_class_names_exist(name: str) -> None:
    names = [re.split(r"[.(]", text)[0] for text in quoted(ROOT / name)]
    classes = [text for text in names if re.fullmatch(r"(?:[A-Z][a-z]+){1,4}|LLM", text)]
    assert len(set(classes)) > 0
    native = "".join(text for path, text in sources().items() if "/native/" in path)
    assert [text for text in classes if text not in definitions() and text not in native] == []


def slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if file.relative_to(ROOT).as_posix() in GENERATED:
            continue
        assert file.exists(), target
        if anchor:
            assert anchor in map(slug, re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)), target


@cache
def flags() -> frozenset[str]:
    """Of all commands, and of the scripts in bench/ and tools/."""

    def of(command: click.Command) -> list[str]:
        own = [text for param in command.params for text in (*param.opts, *param.secondary_opts)]
        with click.Context(command) as context:
            names = command.list_commands(context) if isinstance(command, click.Group) else []
            inner = [command.get_command(context, name) for name in names]  # type: ignore[attr-defined]
        return [*own, *(text for one in inner if one is not None for text in of(one))]

    scripts = " ".join(path.read_text() for name in ("bench", "tools") for path in (ROOT / name).rglob("*.py"))
    return frozenset([*of(penstock), *re.findall(r'"(--[a-z0-9-]+)"', scripts), "--help"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_exist(page: Path) -> None:
    found = [flag for text in quoted(page) for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]\b(?!\*)", text)]
    assert [flag for flag in found if flag not in flags() and flag not in FOREIGN_FLAGS] == []
