"""OpenVINO GenAI as a peer of bench/cpu.py, which runs this with an interpreter that has `openvino-genai` installed:
see cpu_child.py. GGUF files are read by GenAI itself; weights stay in the file's format, KV in its default (int8)."""

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

import cpu_child
from cpu_child import timed


class OpenVINO:
    def __init__(self, model: Path, threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2  # GB
        scheduler.max_num_batched_tokens = 512
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self._numbers = itertools.count()

    def first_token(self) -> float:
        return timed(lambda: self._generate(16))

    def prefill(self, tokens: int) -> float:
        self._generate(tokens)
        return tokens / timed(lambda: self._generate(tokens))

    def decode(self, prompt: int, streams: int, output: int) -> float:
        """From the step that gives the last stream its first token to the step that ends the first of them."""
        self._generate(8, 2)
        # The first stream decodes while the other prompts are computed.
        total = output + streams * prompt // 512 + 2
        drawn = np.random.default_rng(0)
        handles = [self._add(drawn.integers(300, 40000, (1, prompt)), total) for _ in range(streams)]
        counts = [0] * streams
        first: tuple[float, int] | None = None
        while max(counts) < total:
            self._pipeline.step()
            for index, handle in enumerate(handles):
                while handle.can_read():
                    counts[index] += sum(len(output.generated_ids) for output in handle.read().values())
            if first is None and min(counts) > 0:
                first = time.perf_counter(), sum(counts)
        assert first is not None
        speed = (sum(counts) - first[1]) / (time.perf_counter() - first[0])
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return speed

    def _add(self, ids: np.ndarray, count: int) -> Any:
        config = openvino_genai.GenerationConfig(max_new_tokens=count, do_sample=False, ignore_eos=True)
        return self._pipeline.add_request(next(self._numbers), openvino.Tensor(ids), config)

    def _generate(self, prompt: int, output: int = 1) -> None:
        handle = self._add(np.random.default_rng(0).integers(300, 40000, (1, prompt)), output)
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        del handle  # dropping the handle drops the request


if __name__ == "__main__":
    cpu_child.serve(OpenVINO)
