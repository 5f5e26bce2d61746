from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import InvalidSetting
from penstock.store.disk import cache_root, key_of, locked, whole_output, write_whole, writing_to


def test_cache_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root({"PENSTOCK_CACHE": "~/models", "XDG_CACHE_HOME": "/x"}) == tmp_path / "models"
    assert cache_root({"XDG_CACHE_HOME": "/x"}) == Path("/x/penstock")
    assert cache_root({"XDG_CACHE_HOME": "relative"}) == tmp_path / ".cache/penstock"
    assert cache_root({}) == tmp_path / ".cache/penstock"


def test_keys_are_readable_file_names_and_tell_identities_apart() -> None:
    key = key_of("../pypi:a==1/b c.gguf", "one")
    assert key.startswith("pypi-a-1-b-c.gguf-")
    assert "/" not in key
    assert key != key_of("../pypi:a==1/b c.gguf", "two")
    assert len(key_of("x" * 500, "one")) < 100


def test_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(InvalidSetting, match=r"No space left on device.*PENSTOCK_CACHE"), writing_to(tmp_path):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_lock_is_freed_when_its_holder_is_killed(tmp_path: Path) -> None:
    lock, waited = tmp_path / "locks" / "x.lock", []
    script = (
        "import sys; from pathlib import Path; from penstock.store.disk import locked\n"
        "with locked(Path(sys.argv[1]), lambda: None): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"

        def on_wait() -> None:
            waited.append(True)
            holder.kill()

        with locked(lock, on_wait):
            assert waited == [True]
    with locked(lock, lambda: waited.append(False)):
        assert waited == [True]


@pytest.mark.parametrize("is_folder", [True, False])
def test_an_output_is_there_when_it_is_whole(tmp_path: Path, is_folder: bool) -> None:
    out = tmp_path / "new" / "out.x"

    def write(draft: Path, error: BaseException | None = None) -> None:
        if is_folder:
            draft.mkdir()
        (draft / "file" if is_folder else draft).write_bytes(b"content")
        assert not out.exists()
        if error is not None:
            raise error

    with pytest.raises(KeyboardInterrupt), whole_output(out) as draft:
        write(draft, KeyboardInterrupt())
    with pytest.raises(InvalidSetting, match=f"cannot write {out}: No space left"), whole_output(out) as draft:
        write(draft, OSError(28, "No space left on device"))
    assert list(out.parent.iterdir()) == []
    with whole_output(out) as draft:
        write(draft)
    assert list(out.parent.iterdir()) == [out]
    with pytest.raises(InvalidSetting, match="exists already") as caught, whole_output(out):
        raise AssertionError
    assert caught.value.param == "out"


def test_an_output_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSetting, match=r"cannot write .*file/out: "), whole_output(tmp_path / "file" / "out"):
        raise AssertionError
    assert (tmp_path / "file").is_file()
