"""OpenVINO GenAI as a peer of bench/cpu.py, which runs this with an interpreter that has `openvino-genai` installed.

python bench/openvino_peer.py MODEL.gguf THREADS PROMPT STREAMS OUTPUT      prints {"prefill": tok/s, "decode": tok/s}
"""

import json
import sys
import time

import numpy as np
import openvino
import openvino_genai


def main() -> None:
    model = sys.argv[1]
    threads, prompt, streams, output = map(int, sys.argv[2:])
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 1  # GB
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = False
    pipeline = openvino_genai.LLMPipeline(model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads)

    def seconds(count: int) -> float:
        ids = np.random.default_rng(0).integers(300, 40000, (streams, prompt))
        config = openvino_genai.GenerationConfig(max_new_tokens=count, do_sample=False, ignore_eos=True)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        started = time.perf_counter()
        pipeline.generate(inputs, config)
        return time.perf_counter() - started

    seconds(2)
    first = min(seconds(1) for _ in range(2))
    whole = min(seconds(output + 1) for _ in range(2))
    print(json.dumps({"prefill": streams * prompt / first, "decode": streams * output / (whole - first)}))


if __name__ == "__main__":
    main()
