"""CPU time of a decode step at long contexts, by type of KV cache.

    python bench/kv_types.py [--model smollm2] [--streams 1] [--context 7000] [--types float16,int8,int4] [--rounds 12]

One engine for each type in one process, with one thread each; all have the same prompts of random tokens. They take
turns of some steps, each round in the opposite order. A figure is CPU time of the process, so it also holds on a
machine that has other work: the least of all turns, and their median.
"""

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

from penstock import LLM, SamplingParams
from penstock.system.ownership import claim_process

STEPS = 4  # of a turn
WARM_UP = 4


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="smollm2")
    arguments.add_argument("--streams", type=int, default=1)
    arguments.add_argument("--context", type=int, default=7000, help="tokens of each prompt")
    arguments.add_argument("--types", default="float16,int8,int4")
    arguments.add_argument("--rounds", type=int, default=12)
    options = arguments.parse_args()
    claim_process()
    output = WARM_UP + options.rounds * STEPS + options.streams * options.context // 256 + 8
    engines = {}
    for kind in options.types.split(","):
        engines[kind] = decode(options.model, kind, options.streams, options.context, output)
        next(engines[kind])
        print(f"{kind}: {options.streams} x {options.context} tokens are there", flush=True)
    turns: dict[str, list[float]] = {kind: [] for kind in engines}
    for number in range(options.rounds):
        for kind in list(engines)[:: -1 if number % 2 else 1]:
            turns[kind].append(next(engines[kind]))
    first = next(iter(turns.values()))
    for kind, times in turns.items():
        best, median = min(times), statistics.median(times)
        shares = f"{best / min(first):5.3f}x {median / statistics.median(first):5.3f}x"
        print(f"{kind:10} {best:8.2f} ms at best, median {median:8.2f}  {shares}")


def decode(model: str, kind: str, streams: int, context: int, output: int) -> Iterator[float]:
    """0 when all prompts are computed, then the CPU time of a step in ms, the mean of a turn."""
    settings: dict[str, Any] = {"prefix_caching": False, "kv_memory": "1GiB", "device": "cpu"}
    with LLM(model, threads=1, context=context + output, kv_dtype=kind, **settings) as llm:
        drawn, vocab = random.Random(0), llm.model.spec.vocab_size
        prompts = [[drawn.randrange(300, vocab - 300) for _ in range(context)] for _ in range(streams)]
        steps = frames(llm, prompts, SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True))
        while next(steps) < streams:
            pass
        for _ in range(WARM_UP):
            next(steps)
        yield 0.0
        while True:
            before = time.process_time()
            for _ in range(STEPS):
                assert next(steps) == streams, "a stream has ended"
            yield (time.process_time() - before) / STEPS * 1000


def frames(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> Iterator[int]:
    """Tokens of each step."""
    engine: Any = llm._driver.engine
    for active in llm._accept(prompts, params, lambda tokens: {"tokens": tokens}, False):
        for submit in active.submits:
            engine.submit(submit)
    while True:
        for frame in engine.receive(None):
            yield sum(len(delta.tokens) for delta in frame.deltas)


if __name__ == "__main__":
    main()
