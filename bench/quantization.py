"""What quantization costs: perplexity of a model in each format that `penstock quantize` writes, and with each type of
KV cache, on the native CPU kernels.

    python bench/quantization.py stories15m [--groups 32,96]
    python bench/quantization.py smollm2 --groups 64 --text FILE

stories15m is real and in float32; it is scored on stories that it writes itself, and calibrated on others. SmolLM2 is
there in Q4_1 only: its dequantized weights are the base, and the two halves of FILE calibrate and score.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cpu_models
import stories15m
from penstock import LLM, SamplingParams
from penstock.quantize.folder import quantize_folder
from penstock.quantize.formats import GROUPED, TARGETS
from penstock.store.hf_folder import read
from penstock.system.ownership import claim_process

CHUNK, CHUNKS = 240, 48
KV_TYPES = ("float32", "int8")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model", choices=("stories15m", "smollm2"))
    arguments.add_argument("--groups", default="32,96", help="group sizes of 4-bit formats")
    arguments.add_argument("--text", type=Path, help="for smollm2")
    arguments.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "penstock-bench")
    arguments.add_argument("--json", type=Path, help="append one line to this file")
    options = arguments.parse_args()
    claim_process()
    base = stories15m.folder(options.cache) if options.model == "stories15m" else smollm2(options.cache)
    calibration, scored = stories(base) if options.model == "stories15m" else halves(base, options.text)
    exact = perplexity(base, scored, dtype="float32")
    print(f"{'float32 (torch)':24} {exact:9.4f}", flush=True)
    figures = {"float32": exact}
    for name, value in rows(base, calibration, scored, [int(group) for group in options.groups.split(",")]):
        figures[name] = value
        print(f"{name:24} {value:9.4f}  {(value / exact - 1) * 100:+7.3f}%", flush=True)
    if options.json:
        with options.json.open("a") as file:
            file.write(json.dumps({"model": options.model, **figures}) + "\n")


def rows(base: Path, calibration: Any, scored: Any, groups: list[int]) -> Iterator[tuple[str, float]]:
    yield "native, KV float16", perplexity(base, scored)
    for kind in KV_TYPES:
        yield f"native, KV {kind}", perplexity(base, scored, kv_dtype=kind)
    with tempfile.TemporaryDirectory() as folder:
        for target in TARGETS:
            for group in groups if target in GROUPED else [0]:
                out = Path(folder) / f"{target}-{group}"
                quantize_folder(
                    read(base, "base"), out, target, group=group, chunks=calibration, progress=lambda *_: None
                )
                yield f"{target}, groups of {group}" if group else target, perplexity(out, scored)


def perplexity(folder: Path, chunks: list[list[int]], **settings: Any) -> float:
    """Of all tokens but the first of each chunk."""
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    with LLM(str(folder), threads=2, prefix_caching=False, kv_memory="256MiB", context=CHUNK + 1, **settings) as llm:
        total = count = 0.0
        for completion in llm.generate(chunks, params):
            for entry in completion.prompt_logprobs[1:]:
                total -= entry.logprob
                count += 1
    return math.exp(total / count)


def stories(base: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Sampled from the model as it is."""
    params = [
        SamplingParams(max_tokens=CHUNK - 2, temperature=1.0, seed=seed, ignore_eos=True) for seed in range(2 * CHUNKS)
    ]
    with LLM(str(base), threads=2, kv_memory="256MiB", context=CHUNK) as llm:
        told = [[1, *completion.tokens] for completion in llm.generate([[1]] * len(params), params)]
    return told[:CHUNKS], told[CHUNKS:]


def halves(base: Path, text: Path | None) -> tuple[list[list[int]], list[list[int]]]:
    assert text is not None, "smollm2 needs --text"
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(base)(text.read_text())["input_ids"]
    chunks = [tokens[start : start + CHUNK] for start in range(0, len(tokens) - CHUNK, CHUNK)]
    return chunks[::2][:CHUNKS], chunks[1::2][:CHUNKS]


def smollm2(cache: Path) -> Path:
    """Its GGUF, dequantized by transformers."""
    out = cache / "smollm2-dequantized"
    if not (out / "config.json").is_file():
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM, AutoTokenizer

        gguf = cpu_models.MODELS["SmolLM2-135M Q4_1"]()
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)
        weights = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"}  # tied
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
        config = model.config.to_dict()
        config.pop("quantization_config", None)
        (out / "config.json").write_text(json.dumps(config, default=str))
    return out


if __name__ == "__main__":
    main()
