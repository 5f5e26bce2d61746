"""Speculation on and off, in turns, by kind of text: how much sooner answers come, and how many drafts are right.

    python bench/speculation.py [--model smollm2] [--questions spec_bench_question.jsonl.gz] [--prompts 10]
                                [--tokens 128] [--streams 1,8] [--only summarization,rag] [--json FILE]

Questions are those of Spec-Bench (one JSON object per line, with `category` and `turns`); without them there is only
the set of code edits, which is in this file. Each prompt is answered with drafts and without, greedily, which comes
first alternates; a figure is output tokens per second after the first token, over all prompts of a category. The
answers must be the same. The last row is the worst case: text at random temperature, where hardly a draft is right.

llama.cpp's own prompt lookup runs on the same prompts if its tool `llama-lookup` is found (bench/llama_cpp.py).
"""

import argparse
import gzip
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import bytecode
import llama_cpp
from penstock import LLM, SamplingParams
from penstock.flow import Completion

EDITS = (
    "rename the function to compute_result",
    "add a docstring of one line",
    "add type hints",
    "print the result before it is returned",
    "raise ValueError if the first argument is empty",
)
FUNCTIONS = (
    """def summarize_orders(orders):
    totals = {}
    for order in orders:
        customer = order["customer"]
        amount = order["price"] * order["quantity"]
        if customer not in totals:
            totals[customer] = {"count": 0, "amount": 0.0}
        totals[customer]["count"] += 1
        totals[customer]["amount"] += amount
    return sorted(totals.items(), key=lambda item: item[1]["amount"], reverse=True)
""",
    """def parse_config(lines):
    settings = {}
    section = None
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            settings[section] = {}
        elif "=" in line and section is not None:
            key, value = line.split("=", 1)
            settings[section][key.strip()] = value.strip()
        else:
            raise SyntaxError(f"line {number}: {line}")
    return settings
""",
)


class Turn(NamedTuple):
    tokens: int
    seconds: float
    drafted: int
    accepted: int
    outputs: list[list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--questions", type=Path, help="Spec-Bench's questions")
    parser.add_argument("--prompts", type=int, default=10, help="of each category")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="categories, comma-separated")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bytecode.compile_all()
    sets = dict(categories(options))
    rows = []
    with LLM(options.model, speculate="lookup", threads=options.threads, context=4096, kv_memory="1GB") as llm:
        llm.chat([{"role": "user", "content": "Hello!"}], SamplingParams(max_tokens=8))
        print(
            f"{'category':16} {'streams':>7} {'off tok/s':>10} {'on tok/s':>10} {'ratio':>6} {'right':>6} tokens/step"
        )
        for streams in map(int, options.streams.split(",")):
            for category, prompts in sets.items():
                rows.append(row(llm, category, prompts, streams, options.tokens))
    if tool := llama_cpp.LLAMA_CPP.tool("llama-lookup"):
        for category, prompts in sets.items():
            print(f"{category:16} llama.cpp: {lookup_of_llama_cpp(tool, options, prompts)}")
    else:
        print("llama.cpp's llama-lookup is not there")
    if options.json:
        options.json.write_text(json.dumps({"model": options.model, "tokens": options.tokens, "rows": rows}, indent=1))


def categories(options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    chosen = [name for name in options.only.split(",") if name]
    found = {"code_edit": [f"Rewrite this function: {edit}. Answer with the whole function.\n\n```python\n{code}```"
                           for edit in EDITS for code in FUNCTIONS]}  # fmt: skip
    if options.questions:
        with gzip.open(options.questions, "rt") as lines:
            for question in map(json.loads, lines):
                found.setdefault(question["category"], []).append(question["turns"][0])
    found["worst_case"] = found.get("writing", found["code_edit"])
    for category, prompts in found.items():
        if not chosen or category in chosen:
            yield category, prompts[: options.prompts]


def row(llm: LLM, category: str, prompts: list[str], streams: int, tokens: int) -> dict[str, Any]:
    """Both ways on the same prompts, `streams` at a time."""
    turns: dict[bool, list[Turn]] = {False: [], True: []}
    for number, start in enumerate(range(0, len(prompts), streams)):
        group = prompts[start : start + streams]
        for on in (number % 2 == 0, number % 2 == 1):
            turns[on].append(answer(llm, category, group, tokens, on))
        assert turns[True][-1].outputs == turns[False][-1].outputs, "speculation has changed an answer"
    figures = {}
    for on, own in turns.items():
        figures[on] = sum(turn.tokens for turn in own) / sum(turn.seconds for turn in own)
    drafted, accepted = sum(turn.drafted for turn in turns[True]), sum(turn.accepted for turn in turns[True])
    produced = sum(turn.tokens for turn in turns[True])
    result = {
        "category": category, "streams": streams, "off": round(figures[False], 1), "on": round(figures[True], 1),
        "ratio": round(figures[True] / figures[False], 3), "right": round(accepted / max(1, drafted), 3),
        "tokens_per_step": round(produced / max(1, produced - accepted), 2),
    }  # fmt: skip
    print(
        f"{category:16} {streams:7} {result['off']:10} {result['on']:10} {result['ratio']:6.2f} {result['right']:6.2f} "
        f"{result['tokens_per_step']:11}",
        flush=True,
    )
    return result


def answer(llm: LLM, category: str, prompts: list[str], tokens: int, on: bool) -> Turn:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, speculation=on)
    if category == "worst_case":
        params = SamplingParams(temperature=1.5, min_p=0.02, seed=1, max_tokens=tokens, speculation=on)
    found: list[Completion] = llm.chat([[{"role": "user", "content": prompt}] for prompt in prompts], params)
    choices = [result.choices[0] for result in found]
    times = [choice.timings for choice in choices if choice.timings is not None]
    first = [time.first_token for time in times if time.first_token is not None]
    return Turn(
        tokens=sum(len(choice.tokens) - 1 for choice in choices),
        seconds=max(time.finished for time in times) - min(first),
        drafted=sum(time.drafted for time in times),
        accepted=sum(time.accepted for time in times),
        outputs=[choice.tokens for choice in choices],
    )


def lookup_of_llama_cpp(tool: str, options: argparse.Namespace, prompts: list[str]) -> str:
    """Its decode speed and acceptance on the first prompt; it draws other tokens, and has no template here."""
    from penstock.store.resolve import resolve

    (weights,) = resolve(options.model).weights
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(prompts[0])
        file.flush()
        command = [tool, "-m", str(weights), "-f", file.name, "-n", str(options.tokens), "--temp", "0"]
        command += ["-t", str(options.threads), "--draft", "8", "-c", "4096"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    speed = re.search(r"decoded .*speed: +([\d.]+) t/s", done.stderr + done.stdout)
    right = re.search(r"accept += +([\d.]+)%", done.stderr + done.stdout)
    return f"{speed[1] if speed else '?'} tok/s, {right[1] if right else '?'}% right"


if __name__ == "__main__":
    main()
