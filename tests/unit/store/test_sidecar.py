from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from helpers.store_samples import LLAMA, TOKENIZER, VOCAB, write_gguf
from penstock.errors import ModelInvalid
from penstock.store import gguf, sidecar


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "x.gguf")
    return tmp_path


def test_reading_gives_what_writing_gave(folder: Path) -> None:
    written = sidecar.write(folder, "x.gguf", name="mine")
    assert sidecar.read(folder) == written
    assert (written.name, written.format, written.weights) == ("mine", "gguf", (folder / "x.gguf",))
    assert written.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert written.chat_template == TOKENIZER["tokenizer.chat_template"]
    assert written.license == "mit"
    tokenizer = Tokenizer.from_file(str(written.tokenizer))
    assert tokenizer.encode("abcd").ids == [VOCAB.index("ab"), VOCAB.index("cd")]


def test_reading_does_not_open_the_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar.write(folder, "x.gguf", name="mine")

    def refuse(path: Path) -> None:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(gguf, "read_header", refuse)
    assert sidecar.read(folder) is not None


def test_without_tokenizer_and_template(folder: Path) -> None:
    write_gguf(folder / "x.gguf", metadata=LLAMA)
    sidecar.write(folder, "x.gguf", name="mine")
    files = sidecar.read(folder)
    assert files is not None
    assert (files.tokenizer, files.chat_template, files.special_tokens) == (None, None, {})


def test_recommended_sampling(folder: Path) -> None:
    metadata = LLAMA | {"general.sampling.temp": 0.5, "general.sampling.top_k": 20}
    write_gguf(folder / "x.gguf", metadata=metadata)
    assert sidecar.write(folder, "x.gguf", name="mine").sampling == {"temperature": 0.5, "top_k": 20}


def test_recommendations_that_json_cannot_hold(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong = {"general.sampling.temp": float("nan"), "general.sampling.min_p": float("inf")}
    write_gguf(folder / "x.gguf", metadata=LLAMA | wrong | {"general.sampling.top_p": 0.5})
    assert sidecar.write(folder, "x.gguf", name="mine").sampling == {"top_p": 0.5}
    assert sidecar.read(folder) is not None
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["temperature is nan", "min_p is inf"]


def test_metadata_that_is_not_utf8_is_written_all_the_same(folder: Path) -> None:
    content = (folder / "x.gguf").read_bytes()
    (folder / "x.gguf").write_bytes(content.replace(b"{{ message.content }}", b"{{ message.c\xffntent }}"))
    files = sidecar.write(folder, "x.gguf", name="mine")
    assert files == sidecar.read(folder)
    assert files.chat_template is not None
    assert "message.c?ntent" in files.chat_template


def test_none_when_there_is_nothing_to_read(tmp_path: Path) -> None:
    assert sidecar.read(tmp_path) is None
    assert sidecar.read(tmp_path / "nowhere") is None


def change_version(folder: Path) -> None:
    path = folder / sidecar.SPEC
    path.write_text(json.dumps({"version": sidecar.VERSION + 1, "something": "else"}))


def change_a_field(folder: Path) -> None:
    path = folder / sidecar.SPEC
    path.write_text(json.dumps(json.loads(path.read_text()) | {"spec": {"hidden_size": "large"}}))


def touch_weights(folder: Path) -> None:
    os.utime(folder / "x.gguf", ns=(0, 0))


def truncate_weights(folder: Path) -> None:
    state = (folder / "x.gguf").stat()
    os.truncate(folder / "x.gguf", state.st_size - 1)
    os.utime(folder / "x.gguf", ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize(
    "harm",
    [
        change_version,
        change_a_field,
        touch_weights,
        truncate_weights,
        lambda folder: (folder / sidecar.SPEC).write_text("{"),
        lambda folder: (folder / sidecar.TOKENIZER).unlink(),
        lambda folder: (folder / sidecar.TEMPLATE).unlink(),
        lambda folder: (folder / "x.gguf").unlink(),
    ],
)
def test_stale_and_broken_sidecars_do_not_count(folder: Path, harm: object) -> None:
    sidecar.write(folder, "x.gguf", name="mine")
    assert callable(harm)
    harm(folder)
    assert sidecar.read(folder) is None


def test_unusable_weights_leave_no_sidecar(folder: Path) -> None:
    (folder / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelInvalid):
        sidecar.write(folder, "x.gguf", name="mine")
    assert [path.name for path in folder.iterdir()] == ["x.gguf"]
