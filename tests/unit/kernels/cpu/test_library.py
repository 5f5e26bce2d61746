"""What happens where the library was not built, or is of another version."""

from __future__ import annotations

import logging
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import InvalidSetting, PenstockError
from penstock.kernels.cpu import library

INIT_ARRAY = 14  # type of a section


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    library.load.cache_clear()
    yield
    library.load.cache_clear()


def test_not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(library, "PATH", tmp_path / "none.so")
    with caplog.at_level(logging.WARNING):
        assert library.load() is None
        assert library.isa() is None
    (record,) = caplog.records
    assert record.getMessage().startswith(f"no native CPU kernels ({library.PATH}: cannot open")


def test_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    if not library.PATH.exists():
        pytest.skip("the native library was not built")
    monkeypatch.setitem(library.SIGNATURES, "penstock_of_next_year", (None, ()))
    with pytest.raises(PenstockError, match=r"was built from other sources.*Build it again"):
        library.load()


def test_built_with_other_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not library.PATH.exists():
        pytest.skip("the native library was not built")
    monkeypatch.setattr(library, "HEADERS", tmp_path)
    assert library.load() is not None  # a wheel has no headers
    library.load.cache_clear()
    (tmp_path / "program.h").write_text("struct Row {};")
    with pytest.raises(PenstockError, match=r"was built from other sources.*Build it again"):
        library.load()


def test_nothing_runs_when_it_is_loaded() -> None:
    """An initializer in a file of an instruction set would have its instructions, whatever the machine has."""
    if not library.PATH.exists():
        pytest.skip("the native library was not built")
    assert initializers(library.PATH.read_bytes()) <= 1  # that of GCC's own start files


def initializers(elf: bytes) -> int:
    """The entries of its table of functions that the loader calls."""
    if elf[:6] != b"\x7fELF\x02\x01":
        pytest.skip("no library of 64 bits in ELF")
    (sections,) = struct.unpack_from("<Q", elf, 40)
    size, count = struct.unpack_from("<HH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, sections + size * number) for number in range(count)]
    return sum(header[5] // 8 for header in headers if header[1] == INIT_ARRAY)


def test_choice_of_instruction_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not library.PATH.exists():
        pytest.skip("the native library was not built")
    copied = shutil.copy(library.PATH, tmp_path)  # loaded anew: the choice is kept per library
    monkeypatch.setattr(library, "PATH", Path(copied))
    monkeypatch.setenv(library.CHOICE, "portable")
    assert library.isa() == "portable"
    library.load.cache_clear()
    monkeypatch.setenv(library.CHOICE, "vax")
    with pytest.raises(InvalidSetting, match="no 'vax' kernels") as caught:
        library.load()
    assert caught.value.param == "PENSTOCK_CPU"
