"""Penstock as bench/cpu.py runs it: see cpu_child.py."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cpu_child
from cpu_child import timed
from penstock import LLM, SamplingParams
from penstock.system.ownership import claim_process

KV_MEMORY = "2GiB"  # allocated on use


class Penstock:
    def __init__(self, model: Path, threads: int) -> None:
        claim_process()  # as an engine process does
        self._llm = LLM(
            str(model), threads=threads, prefix_caching=False, context=2048, kv_memory=KV_MEMORY, device="cpu"
        )

    def first_token(self) -> float:
        return timed(lambda: self._generate(1, 16, 1))

    def prefill(self, tokens: int) -> float:
        self._generate(1, tokens, 1)
        return tokens / timed(lambda: self._generate(1, tokens, 1))

    def decode(self, prompt: int, streams: int, output: int) -> float:
        """From the step that gives the last stream its first token to the step that ends the first of them."""
        self._generate(streams, 8, 4)
        # The first stream decodes while the other prompts are computed.
        ahead = streams * prompt // 256 + 4
        stamps: list[tuple[float, int, bool]] = []  # (time, tokens so far, whether a stream has ended)
        begun: set[str] = set()
        begins = 0
        for name, count, finished in self._stream(streams, prompt, output + ahead):
            if not stamps or not stamps[-1][2]:
                if name not in begun:
                    begun.add(name)
                    begins = len(stamps)
                stamps.append((time.perf_counter(), (stamps[-1][1] if stamps else 0) + count, finished))
        first, last = stamps[begins], stamps[-1]
        assert len(begun) == streams, "a stream ended before all had begun"
        return (last[1] - first[1]) / (last[0] - first[0])

    def together(self, prompt: int, streams: int, output: int) -> float:
        """Tokens per second from the first request to the last token, prompts included."""
        return streams * output / timed(lambda: self._generate(streams, prompt, output))

    def _generate(self, streams: int, prompt: int, output: int) -> None:
        for _ in self._stream(streams, prompt, output):
            pass

    def _stream(self, streams: int, prompt: int, output: int) -> Iterator[tuple[str, int, bool]]:
        engine: Any = self._llm._driver.engine
        drawn = random.Random(0)
        vocab = self._llm.model.spec.vocab_size
        prompts = [[drawn.randrange(300, vocab - 300) for _ in range(prompt)] for _ in range(streams)]
        params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
        for active in self._llm._accept(prompts, params, lambda tokens: {"tokens": tokens}, False):
            for submit in active.submits:
                engine.submit(submit)
        left = streams
        while left:
            for frame in engine.receive(None):
                for delta in frame.deltas:
                    left -= delta.finish is not None
                    yield delta.id, len(delta.tokens), delta.finish is not None


if __name__ == "__main__":
    cpu_child.serve(Penstock)
