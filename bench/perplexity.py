"""Accuracy of packed weights and quantized activations: perplexity of Penstock's packed path, of its float32 path on
the same weights dequantized, and of llama.cpp.

    python bench/perplexity.py TEXT [--model NAME] [--context 512] [--json FILE]

As llama.cpp's tool: chunks of `context` tokens, of which the second half is scored.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import cpu_models
import llama_cpp
from penstock import LLM, SamplingParams
from penstock.system.ownership import claim_process


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("text", type=Path)
    arguments.add_argument("--model", default="SmolLM2-135M Q4_1", choices=cpu_models.MODELS)
    arguments.add_argument("--context", type=int, default=512)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--json", type=Path, help="append one line to this file")
    options = arguments.parse_args()
    claim_process()  # as an engine process does
    model = cpu_models.MODELS[options.model]()
    figures: dict[str, float] = {}
    for name, settings in (("float32", {"dtype": "float32"}), ("packed", {})):
        with LLM(str(model), threads=options.threads, prefix_caching=False, kv_memory="512MiB", **settings) as llm:
            figures[name] = perplexity(llm, options.text.read_text(), options.context)
    if llama_cpp.LLAMA_CPP.available():
        figures["llama_cpp"] = llama_cpp.perplexity(model, options.text, options.context, options.threads)
    for name, value in figures.items():
        print(f"{name:10} {value:9.4f}  {(value / figures['float32'] - 1) * 100:+.3f}%")
    if options.json:
        facts = {"model": options.model, "text": options.text.name, "context": options.context}
        with options.json.open("a") as file:
            file.write(json.dumps({**facts, **{name: round(value, 4) for name, value in figures.items()}}) + "\n")


def perplexity(llm: Any, text: str, context: int) -> float:
    tokens = llm.pipeline.tokenizer.encode(text)
    chunks = [tokens[start : start + context] for start in range(0, len(tokens) - context + 1, context)]
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    total = count = 0.0
    for chunk, completion in zip(chunks, llm.generate(chunks, params), strict=True):
        for token, entry in list(zip(chunk, completion.prompt_logprobs, strict=True))[context // 2 :]:
            assert entry.token == token
            total -= entry.logprob
            count += 1
    return math.exp(total / count)


if __name__ == "__main__":
    main()
