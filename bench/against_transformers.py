"""Penstock and transformers on the same weights, in one process, in turns. The ratios are the result.

    python bench/against_transformers.py [--rounds 3] [--threads 2] [--only TEXT] [--json FILE]

Rows: TTFT of one prompt of 512 tokens; one stream of 32 tokens after it; 16 concurrent requests, with the uneven
lengths of a real service and with uniform lengths. For the last two, transformers gets the better of two ways:
sequential requests, or one padded batch (left padding, all run as long as the longest). Only requested tokens count.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from penstock import LLM, SamplingParams, __version__
from penstock.system.ownership import claim_process

PREFILL, DECODE = 512, 32
# (prompt, output) tokens of the first 16 requests of the Azure LLM inference trace 2023, conversations (CC-BY-4.0),
# halved so that a run takes minutes.
SCALE = 2
TRACE = [
    (374, 44), (396, 109), (879, 55), (91, 16), (91, 16), (381, 84), (1313, 142), (388, 84),
    (242, 14), (209, 152), (394, 124), (394, 59), (1315, 174), (2221, 15), (389, 90), (415, 106),
]  # fmt: skip


@dataclass
class Row:
    name: str
    unit: str
    tokens: int  # that the rate counts
    penstock: Callable[[], float]  # seconds
    transformers: dict[str, Callable[[], float]]  # seconds, by variant


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--only", default="", help="rows whose name contains this")
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    claim_process()  # as an engine process does
    torch.set_num_threads(options.threads)
    with LLM("smollm2", dtype="float32", threads=options.threads, prefix_caching=False) as llm:
        (weights,) = llm.model.weights
        peer = transformers.AutoModelForCausalLM.from_pretrained(
            weights.parent, gguf_file=weights.name, dtype=torch.float32
        ).eval()
        print(f"{'row':44} {'penstock':>10} {'transformers':>13} {'ratio':>6}")
        results = []
        for row in (row for row in rows(llm, peer) if options.only in row.name):
            results.append(result := measure(row, options.rounds))
            line = f"{result['row']:44} {result['penstock']:>10} {result['transformers']:>13} {result['ratio']:>6}"
            print(line, flush=True)
    if options.json:
        versions = {"penstock": __version__, "transformers": transformers.__version__, "torch": torch.__version__}
        report = {"rows": results, "threads": options.threads, "rounds": options.rounds, "versions": versions}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def rows(llm: LLM, peer: Any) -> list[Row]:
    drawn = random.Random(0)
    vocab = llm.model.spec.vocab_size

    def tokens(count: int) -> list[int]:
        return [drawn.randrange(10, vocab) for _ in range(count)]

    def ours(prompts: list[list[int]], lengths: list[int]) -> float:
        params = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths]
        return timed(lambda: llm.generate(prompts, params))

    def one_by_one(prompts: list[list[int]], lengths: list[int]) -> float:
        return sum(timed(lambda p=p, n=n: generate(peer, [p], n)) for p, n in zip(prompts, lengths, strict=True))

    def padded(prompts: list[list[int]], lengths: list[int]) -> float:
        return timed(lambda: generate(peer, prompts, max(lengths)))

    prompt = tokens(PREFILL)
    ours([prompt], [4])  # the first run of anything is slower
    one_by_one([prompt], [4])
    real_prompts = [tokens(prompt // SCALE) for prompt, _ in TRACE]
    real_lengths = [output // SCALE for _, output in TRACE]
    even_prompts = [tokens(drawn.randint(16, 384)) for _ in TRACE]
    even_lengths = [drawn.randint(8, 128) for _ in TRACE]

    def together(name: str, prompts: list[list[int]], lengths: list[int]) -> Row:
        ways = {"one by one": lambda: one_by_one(prompts, lengths), "padded": lambda: padded(prompts, lengths)}
        return Row(name, "output tok/s", sum(lengths), lambda: ours(prompts, lengths), ways)

    return [
        Row(
            f"prefill of {PREFILL}",
            "tok/s",
            PREFILL,
            lambda: ours([prompt], [1]),
            {"alone": lambda: one_by_one([prompt], [1])},
        ),
        Row(
            f"decode, 1 stream, {DECODE} tokens after {PREFILL}",
            "tok/s",
            DECODE,
            lambda: ours([prompt], [DECODE + 1]) - ours([prompt], [1]),
            {"alone": lambda: one_by_one([prompt], [DECODE + 1]) - one_by_one([prompt], [1])},
        ),
        together(f"{len(TRACE)} requests at once, of a real service", real_prompts, real_lengths),
        together(f"{len(TRACE)} requests at once, lengths uniform", even_prompts, even_lengths),
    ]


def measure(row: Row, rounds: int) -> dict[str, Any]:
    """Medians over rounds in which each side runs once."""
    ours: list[float] = []
    theirs: dict[str, list[float]] = {way: [] for way in row.transformers}
    for _ in range(rounds):
        ours.append(row.penstock())
        for way, run in row.transformers.items():
            theirs[way].append(run())
    way, best = min(((way, statistics.median(times)) for way, times in theirs.items()), key=lambda item: item[1])
    mine = statistics.median(ours)
    return {
        "row": row.name,
        "unit": row.unit,
        "penstock": round(row.tokens / mine, 1),
        "transformers": round(row.tokens / best, 1),
        "transformers_way": way,
        "ratio": round(best / mine, 2),
    }


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@torch.inference_mode()
def generate(model: Any, prompts: list[list[int]], new_tokens: int) -> None:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    model.generate(
        ids, attention_mask=mask, do_sample=False, min_new_tokens=new_tokens, max_new_tokens=new_tokens, pad_token_id=0
    )


if __name__ == "__main__":
    main()
