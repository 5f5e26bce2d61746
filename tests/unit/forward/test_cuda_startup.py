"""A start on a CUDA device: which kernels are compiled when, and what becomes of memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from penstock import LLM, SamplingParams
from penstock.errors import OutOfMemory
from penstock.forward import cuda_startup
from penstock.forward.cuda_backend import CudaBackend
from penstock.forward.cuda_ranks import ALONE
from penstock.forward.graph_capture import GraphCapture

COMMON = {
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "attention_bias": False,
    "head_dim": 128,
    "num_hidden_layers": 2,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
SHAPES: dict[str, dict[str, Any]] = {
    "8b": COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    },
    "0.6b": COMMON
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
}

START = """
import json, sys, threading
from triton import knobs

events = []

def listen(*, src, metadata, cache_hit, **_):
    if threading.current_thread() is threading.main_thread():  # others precompile
        events.append((src.fn.module + ":" + src.name, metadata["hash"], cache_hit))

knobs.compilation.listener = listen
from penstock import LLM, SamplingParams
from penstock.kernels.cuda.precompile import Precompiler

noted = []
wait = Precompiler.wait

def waited(self):
    noted.extend(self.keys)
    wait(self)

Precompiler.wait = waited
folder, dtype, process, settings = sys.argv[1:]
if process == "engine's":
    from penstock.system.ownership import claim_process

    claim_process()
asked = {"load_format": "dummy", "context": 4096, "device": "cuda", "dtype": dtype, "kv_memory": "1GiB"}
with LLM(folder, **asked, **json.loads(settings)) as llm:
    started = len(events)
    for length in (3, 80, 700):
        for temperature in (0.0, 1.0):
            llm.generate([list(range(10, 10 + length))] * 3, SamplingParams(temperature=temperature, max_tokens=4))
    print(json.dumps({"noted": noted, "start": events[:started], "served": events[started:], "facts": llm.facts}))
"""


@pytest.fixture(params=list(SHAPES))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(SHAPES[request.param]))
    return tmp_path


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "process", "settings"),
    [
        ("bfloat16", "engine's", {}),
        ("float32", "engine's", {}),
        ("bfloat16", "user's", {}),
        ("bfloat16", "engine's", {"deterministic": True}),
        ("bfloat16", "engine's", {"kv_dtype": "fp8"}),
        ("bfloat16", "engine's", {"kv_dtype": "int8,int4"}),
        ("bfloat16", "engine's", {"quantize": "int4"}),
        ("bfloat16", "engine's", {"quantize": "int8"}),
        ("bfloat16", "engine's", {"quantize": "fp8"}),
    ],
)
def test_a_start_needs_no_kernel_that_was_not_compiled_ahead(
    folder: Path, dtype: str, process: str, settings: dict[str, object]
) -> None:
    """Forked processes precompile in an engine's own process, threads in a user's."""
    run = subprocess.run(
        [sys.executable, "-c", START, str(folder), dtype, process, json.dumps(settings)],
        env={**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout.splitlines()[-1])
    assert len(told["start"]) > 8
    assert [event for event in told["start"] if not event[2]] == []
    # Neither too little nor, which would only cost time, too much.
    assert {event[1] for event in told["start"]} == set(told["noted"])
    assert [event for event in told["served"] if not event[3]] == []


@pytest.mark.gpu
def test_graphs_take_no_memory_that_was_not_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are captured when the cache has been given all the rest. It may lie in what was reserved before."""
    reserved: list[int] = []
    run_largest_steps, capture_graphs = cuda_startup.run_largest_steps, cuda_startup.capture_graphs

    def largest_steps(*arguments: object, **named: object) -> GraphCapture:
        capture = run_largest_steps(*arguments, **named)
        reserved.append(torch.cuda.memory_reserved())
        return capture

    def captured(backend: CudaBackend, sizes: cuda_startup.StepSizes, capture: GraphCapture) -> None:
        capture_graphs(backend, sizes, capture)
        cache = sum(pages.keys.nbytes + pages.values.nbytes for pages in backend._pages)
        reserved.append(torch.cuda.memory_reserved() - cache)

    monkeypatch.setattr(cuda_startup, "run_largest_steps", largest_steps)
    monkeypatch.setattr(cuda_startup, "capture_graphs", captured)
    torch.cuda.empty_cache()
    with LLM(str(folder), load_format="dummy", context=4096, device="cuda", memory_fraction=0.15) as llm:
        free, total = torch.cuda.mem_get_info()
        assert total - free < 0.16 * total
        before, after = reserved
        assert after - before < 32 << 20
        llm.generate([list(range(10, 90))] * 8, SamplingParams(temperature=1.0, max_tokens=4))
        llm.check_integrity()


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{}, {"kv_dtype": "fp8"}, {"quantize": "int4"}])
def test_an_engine_answers_the_same_after_it_slept(
    folder: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA graphs included: they read weights and pages by address."""
    monkeypatch.setattr(cuda_startup, "owns_process", lambda: True)
    prompts = [list(range(first, first + length)) for first, length in ((10, 3), (20, 80), (200, 700))]
    params = [SamplingParams(temperature=t, max_tokens=8, seed=1, ignore_eos=True) for t in (0.0, 1.0, 0.0)]
    asked = {"load_format": "dummy", "context": 4096, "device": "cuda", "memory_fraction": 0.15}
    with LLM(str(folder), **asked, **settings) as llm:
        loop = llm._driver.engine.loop
        awake = torch.cuda.mem_get_info()[0]
        answers = [answer.tokens for answer in llm.generate(prompts, params)]
        for _ in range(2):
            assert loop.sleep()
            assert torch.cuda.mem_get_info()[0] - awake > 0.9 * llm.facts["kv_bytes"]
            loop.wake()
            again = llm.generate(prompts, params)
            assert [answer.tokens for answer in again] == answers
            assert not any(answer.cached_tokens for answer in again)
            llm.check_integrity()
        del loop


SIZES = cuda_startup.StepSizes(block_size=16, context=4096, step_tokens=8192, max_sequences=512)


class Failing:
    """A backend on a device that is full, from some point on."""

    adapters, deterministic = SimpleNamespace(memory=None), False

    def __init__(self, at: str) -> None:
        self.at = at

    def launch(self, plan: object) -> None:
        self._reach("launch")

    def collect(self) -> None:
        pass

    def graphs(self, step_tokens: int) -> Failing:
        return self

    def capture_largest(self, capture: object) -> None:
        self._reach("capture_largest")

    def capture(self, capture: object) -> None:
        self._reach("capture")

    def _reach(self, point: str) -> None:
        if point == self.at:
            raise torch.OutOfMemoryError("tried to allocate 3 GiB")


@pytest.mark.parametrize(("at", "knob"), [("launch", "step_tokens"), ("capture_largest", "max_sequences")])
def test_no_memory_for_a_step(at: str, knob: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_startup, "GraphCapture", object)
    monkeypatch.setattr(cuda_startup, "_backend", lambda *_: Failing(at))
    model = SimpleNamespace(spec=SimpleNamespace(cache_groups=[None]))
    with pytest.raises(OutOfMemory, match=f"Lower {knob}") as caught:
        cuda_startup.run_largest_steps(model, SIZES, None, dtype=torch.bfloat16)
    assert caught.value.param == knob
    assert "3 GiB" in caught.value.message


def test_no_memory_for_what_drafts() -> None:
    """Its graphs and the states it keeps are not part of the KV cache's share."""
    message = r"no memory for what drafts tokens beside .* Lower memory_fraction"
    with pytest.raises(OutOfMemory, match=message) as caught, cuda_startup.beside_the_cache("what drafts tokens"):
        raise torch.OutOfMemoryError("tried to allocate 3 GiB")
    assert caught.value.param == "memory_fraction"
    assert "3 GiB" in caught.value.message


def started(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """A start on a device without memory for one of its parts; all others are nothing here."""

    def part(name: str) -> Any:
        def take(*_: Any, **options: Any) -> Any:
            if name == at:
                raise torch.OutOfMemoryError("tried to allocate 3 GiB")
            return MagicMock()

        return take

    names = (
        "CudaPages", "coded_form", "precompile", "load_model", "load_proposer", "run_largest_steps",
        "choose_cache_size", "device_memory", "CudaBackend",
    )  # fmt: skip
    for name in names:
        monkeypatch.setattr(cuda_startup, name, part(name))
    for name in ("torch_process", "process_tuning"):
        monkeypatch.setattr(cuda_startup, name, MagicMock())
    compiler = MagicMock()
    compiler.return_value.__exit__.return_value = None
    monkeypatch.setattr(cuda_startup, "Precompiler", compiler)
    config = MagicMock(dtype="bfloat16", adapter_bytes=0)
    monkeypatch.setattr(cuda_startup, "join", lambda _: ALONE)
    monkeypatch.setattr(cuda_startup, "has_codes", lambda _: False)
    monkeypatch.setattr(cuda_startup, "owns_process", lambda: False)
    cuda_startup._start(config, None, lambda _: None, lambda _: None)


@pytest.mark.parametrize(
    ("at", "param", "words"),
    [
        (
            "load_proposer",
            "speculate",
            r"what drafts tokens beside the weights: .* Choose a smaller head or draft model",
        ),
        ("CudaBackend", "memory_fraction", r"slots beside the weights and the KV cache: .* Lower memory_fraction"),
    ],
)
def test_no_memory_for_a_part_of_a_start(monkeypatch: pytest.MonkeyPatch, at: str, param: str, words: str) -> None:
    with pytest.raises(OutOfMemory, match=words) as caught:
        started(monkeypatch, at)
    assert caught.value.param == param
    assert "3 GiB" in caught.value.message


def test_no_memory_for_graphs() -> None:
    with pytest.raises(OutOfMemory, match="Lower memory_fraction, kv_memory or max_sequences") as caught:
        cuda_startup.capture_graphs(Failing("capture"), SIZES, None)
    assert caught.value.param == "memory_fraction"
