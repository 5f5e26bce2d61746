"""Speculation on one GPU: tokens per second with drafts and without, at an acceptance that is set.

    python bench/gpu_speculation.py [--model 8b] [--streams 1,8] [--context 512] [--tokens 256] [--drafts 4]
                                    [--right 0.7] [--repetitions 3] [--head]

Shapes and weights as of bench/gpu.py: random ones, which no proposer can guess. So drafts are random tokens, and which
of them count is decided by a seeded coin in place of equality, after the full forward pass and all draws: what is
measured is the price of the steps and of the host's work, as at this acceptance in earnest. With --head they come from
an EAGLE-1 head of random weights, a layer of the target's shape that drafts with the target's output head; without,
they are free. Each way is measured several times, in turns; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton
import triton.language as tl
from msgspec.structs import replace
from torch import Tensor

import gpu
from penstock import LLM, SamplingParams
from penstock.flow import Admit, Row
from penstock.forward import accepted_draws, cuda_proposer, cuda_speculation
from penstock.kernels.arrays import Array
from penstock.kernels.cuda.accept import MOST_DRAWS
from penstock.speculate.chain_proposer import ChainSource
from penstock.speculate.heads.spec import ChainHeadSpec
from penstock.speculate.heads.weights import ChainHeadWeights, LayerWeights, Projection
from penstock.speculate.lookup import LookupSource
from penstock.speculate.proposer import DraftRow, Proposal
from penstock.startup import decide
from penstock.store.spec import ModelSpec
from penstock.system.ownership import claim_process


@triton.jit(do_not_specialize=["count", "total", "seed"])
def _coin_kernel(drawn, computed, places, result, count, total, seed, RIGHT: tl.constexpr, MOST: tl.constexpr):
    """As `kernels.cuda.accept._accept`, but for the coin."""
    row = tl.program_id(0)
    first = tl.load(places + row)
    draws = tl.load(places + row + 1) - first
    at = tl.load(places + count + 1 + row)
    index = tl.arange(0, MOST)
    token = tl.load(drawn + first + index, mask=index < draws, other=0)
    draft = tl.load(computed + at + 1 + index, mask=index + 1 < draws, other=-1)
    is_right = tl.rand(seed, first.to(tl.int32) * MOST + index) < RIGHT
    right = tl.min(tl.where((index + 1 < draws) & is_right, MOST, index), axis=0)
    tl.store(result + row, tl.minimum(right + 1, draws).to(tl.int32))
    tl.store(result + count + first + index, token.to(tl.int32), mask=index < draws)
    tl.store(result + count + total + first + index, draft.to(tl.int32), mask=index < draws)


class Coin:
    """In place of `kernels.cuda.accept.accept`."""

    def __init__(self, right: float) -> None:
        self._right, self._seed = right, 0

    def __call__(self, drawn: Tensor, computed: Tensor, places: Tensor, result: Tensor) -> None:
        self._seed += 1
        rows = places.shape[1] - 1
        _coin_kernel[(rows,)](
            drawn, computed, places, result, rows, len(drawn), self._seed, self._right, MOST_DRAWS, num_warps=1
        )


class RandomDrafts:
    """Implements `Proposer`."""

    kinds = (0.7,)
    computes = False
    taps = None

    def __init__(self, most: int) -> None:
        self._most = most

    def admit(self, admit: Admit) -> None:
        pass

    def follow(self, rows: Sequence[Row], states: Array) -> None:
        pass

    def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        return [Proposal(random.choices(range(10, 100000), k=min(row.most, self._most))) for row in rows]


def random_head(target: ModelSpec) -> ChainSource:
    """An EAGLE-1 head: a layer like the target's, and its embedding and output head."""
    drawn = np.random.default_rng(0).standard_normal(1 << 22).astype(np.float32)

    def projection(rows: int, columns: int) -> Projection:
        return Projection(np.resize(drawn, (rows, columns)) * np.float32(0.3 * columns**-0.5))

    hidden, ffn = target.hidden_size, target.intermediate_size
    q, kv = target.num_heads * target.head_dim, target.num_kv_heads * target.head_dim
    layer = LayerWeights(
        input_norm=None,
        q=projection(q, hidden),
        k=projection(kv, hidden),
        v=projection(kv, hidden),
        output=projection(hidden, q),
        mlp_norm=np.ones(hidden, np.float32),
        gate=projection(ffn, hidden),
        up=projection(ffn, hidden),
        down=projection(hidden, ffn),
    )
    layers = replace(target, num_layers=1, windows=())
    spec = ChainHeadSpec(kind="eagle", layers=layers, target_hidden_size=hidden, draft_vocab_size=target.vocab_size)
    return ChainSource(spec, ChainHeadWeights(fuse=projection(hidden, 2 * hidden), layers=(layer,)))


class BoundedHead(cuda_proposer.HeadDrafts):
    """With no more drafts than asked for on the command line."""

    most = 4

    def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        return super().propose([row._replace(most=min(row.most, self.most)) for row in rows])


def open_model(folder: str, drafts: int, *, head: bool = False, **settings: Any) -> LLM:
    cuda_speculation.PromptLookup = lambda tokens: RandomDrafts(drafts)  # type: ignore[assignment,misc,attr-defined]
    BoundedHead.most = drafts
    cuda_speculation.HeadDrafts = BoundedHead  # type: ignore[misc,attr-defined]
    decide.prepare_drafts = lambda how, files: random_head(files.spec) if head else LookupSource()  # type: ignore[attr-defined]
    given = {"load_format": "dummy", "context": gpu.CONTEXT, "device": "cuda", "speculate": "lookup"}
    return LLM(folder, **{**given, **settings})


def generate(llm: LLM, prompts: list[list[int]], tokens: int, **params: Any) -> tuple[float, dict[str, Any]]:
    """Seconds of the tokens after the first ones, and what the drafts did."""
    before = llm.stats()["speculation"]
    results = llm.generate(
        prompts, SamplingParams(max_tokens=tokens, ignore_eos=True, **{"temperature": 0.0, **params}), progress=False
    )
    after = llm.stats()["speculation"]
    times = [choice.timings for result in results for choice in result.choices if choice.timings is not None]
    seconds = max(one.finished for one in times) - max(one.first_token or one.finished for one in times)
    return seconds, {name: after[name] - before[name] for name in ("steps", "drafted", "accepted")}


def measure(llm: LLM, streams: int, context: int, tokens: int, repetitions: int, **params: Any) -> dict[str, Any]:
    drawn = random.Random(streams)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    totals = {"steps": 0, "drafted": 0, "accepted": 0}
    for repetition in range(2 * repetitions + 2):
        on = bool(repetition % 2)
        prompts = [[drawn.randrange(10, 100000) for _ in range(context)] for _ in range(streams)]
        taken, counts = generate(llm, prompts, tokens, speculation=on, **params)
        if repetition >= 2:
            seconds[on].append(taken)
            totals = {name: totals[name] + counts[name] for name in totals}
    off, on_ = (streams * (tokens - 1) / statistics.median(seconds[way]) for way in (False, True))
    return {
        "streams": streams,
        "context": context,
        "off tok/s": round(off, 1),
        "on tok/s": round(on_, 1),
        "ratio": round(on_ / off, 3),
        "step ms off": round(streams / off * 1e3, 3),
        "right": round(totals["accepted"] / max(1, totals["drafted"]), 3),
        "drafts per row": round(totals["drafted"] / max(1, totals["steps"] * streams), 2),
        "tokens per row": round(1 + totals["accepted"] / max(1, totals["steps"] * streams), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(gpu.CONFIGS), default="8b")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--right", type=float, default=0.7)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--head", action="store_true", help="drafts of a head, its time counted in")
    options = parser.parse_args()
    claim_process()
    accepted_draws.accept = Coin(options.right)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(gpu.CONFIGS[options.model]))
        started = time.perf_counter()
        with open_model(folder, options.drafts, head=options.head) as llm:
            print(f"started in {time.perf_counter() - started:.1f} s", llm.facts["start_parts_s"], flush=True)
            for streams in map(int, options.streams.split(",")):
                print(measure(llm, streams, options.context, options.tokens, options.repetitions), flush=True)
            llm.check_integrity()


if __name__ == "__main__":
    main()
