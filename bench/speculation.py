"""Speculation on and off, in turns, by kind of text: how much sooner answers come, and how many drafts are right.

    python bench/speculation.py [--model smollm2] [--questions spec_bench_question.jsonl.gz] [--prompts 10]
                                [--tokens 128] [--streams 1,8] [--only summarization,rag] [--peer | --cpu-time]
                                [--json FILE] [--seconds 180]

Questions are those of Spec-Bench (one JSON object per line, with `category` and `turns`); without them there is only
the set of code edits (bench/code_edits.py). Each prompt is answered with drafts and without, greedily; which comes
first alternates. A figure is output tokens per second after the first token, over all prompts of a category. The
answers must be the same. `worst_case` draws at a high temperature from text that repeats nothing.

With --peer, llama.cpp's own prompt lookup (bench/llama_cpp.py) answers the first prompts of each category: with up to 8
drafts and, for its own ratio, with none.

With --cpu-time and --threads 1, seconds are CPU time of the process (bench/cpu_clock.py): on a busy machine that tells
what steps cost, and the time that passes does not.

With --json, groups of prompts that the file has are not measured again, and --seconds ends a run after the group in
which that time has passed: a long measurement can be made in slices.
"""

import cpu_clock  # noqa: F401 - before penstock is imported

# isort: split
import argparse
import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import bytecode
import llama_cpp
from code_edits import code_edits
from penstock import LLM, SamplingParams
from penstock.flow import Completion, Request
from penstock.store.resolve import resolve

WORST_CASE = SamplingParams(temperature=1.5, min_p=0.02, seed=1)
PEER_PROMPTS = 3  # of a category: it computes each prompt twice


class Turn(NamedTuple):
    """A group of prompts, answered at the same time in one of both ways."""

    tokens: int  # after the first of each answer
    seconds: float
    drafted: int
    accepted: int


class Results:
    """Turns by model, category, streams, engine and group, kept in a file."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        known = json.loads(file.read_text()) if file is not None and file.exists() else {"turns": []}
        self.turns: list[dict[str, Any]] = known["turns"]

    def has(self, **key: Any) -> bool:
        return any(key.items() <= turn.items() for turn in self.turns)

    def add(self, off: Turn, on: Turn, **key: Any) -> None:
        self.turns.append({**key, "off": off._asdict(), "on": on._asdict()})
        if self._file is not None:
            tables = {"figures": list(figures(self.turns)), "turns": self.turns}
            self._file.write_text(json.dumps(tables, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--questions", type=Path, help="Spec-Bench's questions")
    parser.add_argument("--prompts", type=int, default=10, help="of each category")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="categories, comma-separated")
    parser.add_argument("--cpu-time", action="store_true", help="CPU time, with one thread: for a busy machine")
    parser.add_argument("--peer", action="store_true", help="llama.cpp's figures, too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    if options.cpu_time and (options.threads != 1 or options.peer):
        parser.error("--cpu-time goes with --threads 1, and without --peer")
    deadline = time.time() + options.seconds
    bytecode.compile_all()
    results, sets = Results(options.json), dict(categories(options))
    for streams in map(int, options.streams.split(",")):
        measure(options, sets, streams, results, deadline)
    print(f"{'model':20} {'category':15} streams engine      off tok/s  on tok/s  ratio  right  tokens/step")
    for row in figures(results.turns):
        print(
            f"{row['model']:20} {row['category']:15} {row['streams']:7} {row['engine']:10} {row['off']:10} "
            f"{row['on']:9} {row['ratio']:6.2f} {row['right']:6.2f} {row['tokens_per_step']:12}"
        )


def categories(options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    chosen = [name for name in options.only.split(",") if name]
    found = {"code_edit": code_edits()}
    if options.questions:
        with gzip.open(options.questions, "rt") as lines:
            for question in map(json.loads, lines):
                found.setdefault(question["category"], []).append(question["turns"][0])
    found["worst_case"] = found.get("writing", found["code_edit"])
    for category, prompts in found.items():
        if not chosen or category in chosen:
            yield category, prompts[: options.prompts]


def measure(
    options: argparse.Namespace, sets: dict[str, list[str]], streams: int, results: Results, deadline: float
) -> None:
    """What `results` does not have yet. A new engine for each number of streams: it has not seen these answers."""
    groups = [
        (category, first, prompts[first : first + streams])
        for category, prompts in sets.items()
        for first in range(0, len(prompts), streams)
    ]
    tool = llama_cpp.LLAMA_CPP.tool("llama-lookup") if options.peer and streams == 1 else None
    key = {"model": options.model, "streams": streams, "tokens": options.tokens}
    with LLM(options.model, speculate="lookup", threads=options.threads, context=4096, kv_memory="1GB") as llm:
        llm.chat([{"role": "user", "content": "Hello!"}], SamplingParams(max_tokens=8))
        for category, first, prompts in groups:
            own = {**key, "category": category, "first": first}
            if time.time() > deadline:
                return
            if not results.has(**own, engine="penstock"):
                off, on = answer_twice(llm, category, prompts, options.tokens, on_first=bool(first // streams % 2))
                results.add(off, on, **own, engine="penstock")
            if (
                tool
                and first < PEER_PROMPTS
                and category != "worst_case"
                and not results.has(**own, engine="llama.cpp")
            ):
                results.add(*peer(options, tool, rendered(llm, prompts[0])), **own, engine="llama.cpp")


def answer_twice(llm: LLM, category: str, prompts: list[str], tokens: int, *, on_first: bool) -> tuple[Turn, Turn]:
    """Without drafts, and with. The prompts are computed before: of several streams, the first would else wait for the
    prompts of the others, in the first of both ways only."""
    answer(llm, category, prompts, 1, on=False)
    found: dict[bool, tuple[Turn, list[list[int]]]] = {}
    for on in (on_first, not on_first):
        found[on] = answer(llm, category, prompts, tokens, on=on)
    assert found[True][1] == found[False][1], "speculation has changed an answer"
    return found[False][0], found[True][0]


def answer(llm: LLM, category: str, prompts: list[str], tokens: int, *, on: bool) -> tuple[Turn, list[list[int]]]:
    how = WORST_CASE if category == "worst_case" else SamplingParams(temperature=0.0)
    params = msgspec.structs.replace(how, max_tokens=tokens, speculation=on)
    results: list[Completion] = llm.chat([[{"role": "user", "content": prompt}] for prompt in prompts], params)
    choices = [result.choices[0] for result in results]
    times = [choice.timings for choice in choices if choice.timings is not None]
    turn = Turn(
        tokens=sum(len(choice.tokens) - 1 for choice in choices),
        seconds=max(time.finished for time in times) - min(time.first_token or time.finished for time in times),
        drafted=sum(time.drafted for time in times),
        accepted=sum(time.accepted for time in times),
    )
    return turn, [choice.tokens for choice in choices]


def rendered(llm: LLM, prompt: str) -> str:
    """As the model reads it, by its chat template."""
    request = Request(id="rendered", params=SamplingParams(), messages=[{"role": "user", "content": prompt}])
    return llm.pipeline.tokenizer.decode(llm.pipeline.accept(request).submits[0].tokens, skip_special=False)


def peer(options: argparse.Namespace, tool: str, prompt: str) -> tuple[Turn, Turn]:
    """llama.cpp's prompt lookup: without drafts, and with up to 8. Its tokens are its own."""
    (weights,) = resolve(options.model).weights
    off, on = (
        llama_cpp.lookup(tool, weights, prompt, drafts=drafts, tokens=options.tokens, threads=options.threads)
        for drafts in (0, 8)
    )
    return Turn(*off), Turn(*on)


def figures(turns: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """By model, streams, category and engine, over all prompts."""
    names = ("model", "streams", "category", "engine")
    for key in dict.fromkeys(tuple(turn[name] for name in names) for turn in turns):
        own = [turn for turn in turns if tuple(turn[name] for name in names) == key]
        total = {way: Turn(*(sum(turn[way][name] for turn in own) for name in Turn._fields)) for way in ("off", "on")}
        off, on = (total[way].tokens / total[way].seconds for way in ("off", "on"))
        tokens, accepted = total["on"].tokens, total["on"].accepted
        yield {
            **dict(zip(names, key, strict=True)),
            "off": round(off, 1),
            "on": round(on, 1),
            "ratio": round(on / off, 3),
            "right": round(accepted / max(1, total["on"].drafted), 3),
            "tokens_per_step": round(tokens / max(1, tokens - accepted), 2),
        }


if __name__ == "__main__":
    main()
