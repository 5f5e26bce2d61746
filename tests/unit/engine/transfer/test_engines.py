"""Two engines of a real model: one computes a prompt, the other answers from its blocks, bit for bit and token for
token, over both transports and for every kind of KV cache."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_models
from penstock import composition, settings
from penstock.engine.loop import EngineLoop
from penstock.engine.transfer import importer
from penstock.errors import InvalidSetting
from penstock.flow import Delta, FinishReason, Query, SamplingParams, Submit
from penstock.flow.prefix import root_key
from penstock.flow.transfer import TransferSetup, Transport

SECRET = b"s" * 32
PROMPT = [(7 * place) % 300 + 5 for place in range(100)]


class Engine:
    def __init__(self, folder: Path, transport: Transport, *, exports: bool, **options: Any) -> None:
        asked = settings.load({"model": str(folder), "kv_memory": "20MB", "threads": 1, **options}, environ={})
        self.loop: EngineLoop
        self.loop, self.facts = composition.engine_loop(asked, SECRET, None, TransferSetup(transport, exports))

    def run(self, name: str, tokens: list[int], count: int) -> tuple[list[int], int]:
        """The output, and how many tokens were found cached."""
        params = SamplingParams(temperature=0.0)
        self.loop.handle(Submit(name, tokens, params, 0, count))
        deltas: list[Delta] = []
        while self.loop.has_work:
            frame = self.loop.step()
            deltas += frame.deltas if frame is not None else []
        assert deltas[-1].finish is FinishReason.LENGTH
        return [token for delta in deltas for token in delta.tokens], max(delta.cached_tokens for delta in deltas)

    def ask(self, kind: str, **arguments: Any) -> Any:
        reply = self.loop.handle(Query(1, kind, arguments))
        assert reply is not None
        assert reply.error is None
        return reply.value

    def contents(self, tokens: list[int], root: bytes) -> list[list[bytes]]:
        """[groups] of the blocks that a sequence of these tokens would start from."""
        transfers = self.loop.transfers
        assert transfers is not None
        cache = self.loop.scheduler.cache
        chain = cache.chain("", "")
        chain.root = root
        hit = cache.lookup_prefix(chain, tokens)
        pairs = zip(transfers._memory.groups, hit.blocks, strict=True)
        return [[memory[block].tobytes() for block in blocks if block] for memory, blocks in pairs]

    def close(self) -> None:
        assert self.ask("check") is None
        assert all(usage["held"] == 0 for usage in self.ask("stats")["blocks"])
        assert self.loop.transfers is not None
        self.loop.transfers.close()


def transfer(source: Engine, target: Engine, tokens: list[int], root: bytes) -> dict[str, Any]:
    prompt = {"transfer": "t", "root": root, "tenant": "", "tokens": tokens}
    exported = source.ask("kv_export", **prompt)
    assert target.ask("kv_import", address=exported["address"], **prompt)
    until = time.monotonic() + 60
    while (result := target.ask("kv_import_result", transfer="t")) is None:
        assert time.monotonic() < until
    source.ask("kv_export_end", transfer="t")
    return dict(result)


@pytest.mark.parametrize(
    ("family", "transport", "options"),
    [
        ("llama", "shared-memory", {}),
        ("llama", "tcp", {"kv_dtype": "int8"}),
        ("qwen3", "shared-memory", {"kv_dtype": "int8,int4"}),
        ("gemma3", "tcp", {}),  # two cache groups, one with a window
        ("mistral", "shared-memory", {"block_size": 8, "kv_dtype": "float32"}),  # windows only
    ],
)
def test_blocks_and_answers_are_the_same(
    tmp_path: Path, family: str, transport: Transport, options: dict[str, Any]
) -> None:
    tiny_models.make(family, tmp_path / family)
    source = Engine(tmp_path / family, transport, exports=True, **options)
    target = Engine(tmp_path / family, transport, exports=False, **options)
    size = source.facts["block_size"]
    full = (len(PROMPT) - 1) // size * size
    root = root_key(SECRET, "", "")
    source.run("prefill", PROMPT[:full], 1)
    result = transfer(source, target, PROMPT[: full + 1], root)
    assert result["cause"] is None
    assert target.contents(PROMPT, root) == source.contents(PROMPT, root)
    expected, _ = source.run("one", PROMPT, 12)
    answered, cached = target.run("other", PROMPT, 12)
    assert (answered, cached) == (expected, full)
    source.close()
    target.close()


def test_the_loop_works_until_a_cancelled_import_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another message: its blocks come back by themselves."""
    tiny_models.make("llama", tmp_path / "llama")
    source = Engine(tmp_path / "llama", "tcp", exports=True)
    target = Engine(tmp_path / "llama", "tcp", exports=False)
    source.run("prefill", PROMPT[:96], 1)
    prompt = {"transfer": "t", "root": root_key(SECRET, "", ""), "tenant": "", "tokens": PROMPT[:97]}
    connecting, opened = threading.Event(), threading.Event()

    def unreachable(*_: Any) -> Any:
        connecting.set()
        assert opened.wait(60)
        raise ConnectionError

    monkeypatch.setattr(importer, "connect", unreachable)
    assert target.ask("kv_import", address=source.ask("kv_export", **prompt)["address"], **prompt)
    assert connecting.wait(60)
    target.ask("kv_import_cancel", transfer="t")
    assert target.loop.has_work
    assert target.loop.step() is None
    assert target.loop.has_work
    opened.set()
    while target.loop.has_work:
        target.loop.step()
    source.ask("kv_export_end", transfer="t")
    source.close()
    target.close()


def test_engines_that_do_not_fit_each_other_exchange_nothing(tmp_path: Path) -> None:
    tiny_models.make("llama", tmp_path / "llama")
    source = Engine(tmp_path / "llama", "shared-memory", exports=True)
    target = Engine(tmp_path / "llama", "shared-memory", exports=False, kv_dtype="int8")
    assert source.facts["kv_layout"] != target.facts["kv_layout"]
    source.run("prefill", PROMPT[:96], 1)
    result = transfer(source, target, PROMPT[:97], root_key(SECRET, "", ""))
    assert (result["cause"], result["blocks"]) == ("layout", 0)
    source.close()
    target.close()


def test_a_step_that_runs_beside_a_transfer_is_not_changed_by_it(tmp_path: Path) -> None:
    """Sequences of the decode engine go on between the pieces of a transfer."""
    tiny_models.make("llama", tmp_path / "llama", max_position_embeddings=8192)
    source = Engine(tmp_path / "llama", "tcp", exports=True)
    target = Engine(tmp_path / "llama", "tcp", exports=False)
    long = [(11 * place) % 300 + 5 for place in range(4000)]
    expected, _ = source.run("alone", PROMPT, 200)
    source.run("prefill", long[: 249 * 16], 1)
    prompt = {"transfer": "t", "root": root_key(SECRET, "", ""), "tenant": "", "tokens": long[: 249 * 16 + 1]}
    exported = source.ask("kv_export", **prompt)
    target.loop.handle(Submit("beside", PROMPT, SamplingParams(temperature=0.0), 0, 200))
    assert target.ask("kv_import", address=exported["address"], **prompt)
    tokens: list[int] = []
    result = None
    while target.loop.has_work or result is None:
        frame = target.loop.step()
        tokens += [token for delta in (frame.deltas if frame else []) for token in delta.tokens]
        result = result or target.ask("kv_import_result", transfer="t")
    source.ask("kv_export_end", transfer="t")
    assert tokens == expected
    assert (result["cause"], result["blocks"]) == (None, 249)
    assert target.run("long", long, 8)[0] == source.run("long", long, 8)[0]
    source.close()
    target.close()


def test_an_engine_without_the_native_kernels_refuses(tmp_path: Path) -> None:
    tiny_models.make("llama", tmp_path / "llama")
    with pytest.raises(InvalidSetting, match="only the native CPU kernels") as error:
        Engine(tmp_path / "llama", "tcp", exports=False, dtype="float32")
    assert error.value.param == "prefill_replicas"
