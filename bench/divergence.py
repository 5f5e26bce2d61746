"""How far quantized activations move the model's answers: the Kullback-Leibler divergence of the next token's
distribution from the float32 path's on the same weights, for Penstock and llama.cpp.

    python bench/divergence.py [--model NAME] [--llama-cpp PYTHON] [--json FILE]

The positions are those of float32's own greedy answers to 32 questions, so every engine reads the same tokens.
Agreement is the part of the positions with the same likeliest token; whole answers are those with the same one at every
position. llama.cpp takes part if --llama-cpp names a Python that has llama-cpp-python.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import cpu_models
from penstock import LLM, SamplingParams
from penstock.forward.native_model import NativeModel
from penstock.forward.torch_hidden_states import TorchHiddenStates
from penstock.system.ownership import claim_process

ANSWER = 48  # tokens
QUESTIONS = Path(__file__).with_name("questions.txt")
ENGINES = {"packed": {}, "packed, float32 KV": {"kv_dtype": "float32"}}

Tokens = list[int]
Logprobs = np.ndarray[Any, np.dtype[np.float64]]  # [positions, vocab]


@dataclass(frozen=True)
class Chat:
    prompt: Tokens
    answer: Tokens

    def select(self, logits: Any) -> Logprobs:
        """Log-probabilities of the answer's tokens, given the logits of all tokens but the last."""
        rows = np.asarray(logits[len(self.prompt) - 1 : len(self.prompt) - 1 + len(self.answer)], np.float64)
        rows = rows - rows.max(1, keepdims=True)
        selected: Logprobs = rows - np.log(np.exp(rows).sum(1, keepdims=True))
        return selected


@dataclass(frozen=True)
class Result:
    engine: str
    divergence: float  # mean
    agreement: float
    whole_answers: int
    chats: int
    positions: int

    def __str__(self) -> str:
        answers = f"whole answers {self.whole_answers} of {self.chats}"
        return f"{self.engine:20} KL {self.divergence:.6f}  agreement {100 * self.agreement:.2f}%  {answers}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="SmolLM2-135M Q4_1", choices=cpu_models.MODELS)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--llama-cpp", metavar="PYTHON", help="an interpreter with llama-cpp-python")
    arguments.add_argument("--json", type=Path, help="append one line to this file")
    options = arguments.parse_args()
    claim_process()  # as an engine process does
    model = cpu_models.MODELS[options.model]()
    with start(model, options.threads, dtype="float32") as llm:
        chats = answer(llm)
        exact = penstock(llm, chats)
    results = []
    for name, settings in ENGINES.items():
        with start(model, options.threads, **settings) as llm:
            results.append(compare(name, exact, penstock(llm, chats)))
            print(results[-1], flush=True)
    if options.llama_cpp:
        results.append(compare("llama.cpp", exact, llama_cpp(options.llama_cpp, model, chats, options.threads)))
        print(results[-1])
    print(f"{results[0].positions} positions of {len(chats)} answers")
    if options.json:
        with options.json.open("a") as file:
            file.write(json.dumps({"model": options.model, "results": [asdict(result) for result in results]}) + "\n")


def start(model: Path, threads: int, **settings: Any) -> LLM:
    # A prompt is one step, so that its logits are captured in order.
    return LLM(str(model), threads=threads, prefix_caching=False, kv_memory="512MiB", step_tokens=2048, **settings)


def answer(llm: LLM) -> list[Chat]:
    questions = QUESTIONS.read_text().splitlines()
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER)
    results = llm.chat([[{"role": "user", "content": question}] for question in questions], params)
    return [Chat(list(result.prompt_tokens), list(result.tokens)) for result in results]


def penstock(llm: LLM, chats: Sequence[Chat]) -> list[Logprobs]:
    """Takes the logits where the engine computes log-probabilities of a prompt, whichever backend it has."""
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    parts: list[Any] = []
    originals = {kind: kind.logprobs for kind in (NativeModel, TorchHiddenStates)}

    def capture(self: Any, first: int, end: int, slot: int, position: int, count: int) -> Any:
        logits = self.logits(first, end)
        parts.append(logits.copy() if isinstance(logits, np.ndarray) else logits.numpy())
        return originals[type(self)](self, first, end, slot, position, count)

    found = []
    try:
        for kind in originals:
            kind.logprobs = capture
        for chat in chats:
            parts.clear()
            llm.generate(chat.prompt + chat.answer, params)
            found.append(chat.select(np.concatenate(parts)))
    finally:
        for kind, original in originals.items():
            kind.logprobs = original
    return found


def llama_cpp(python: str, model: Path, chats: Sequence[Chat], threads: int) -> list[Logprobs]:
    with tempfile.TemporaryDirectory() as folder:
        sequences, logits = Path(folder, "sequences.json"), Path(folder, "logits.npy")
        sequences.write_text(json.dumps([chat.prompt + chat.answer for chat in chats]))
        script = Path(__file__).with_name("llama_cpp_logits.py")
        subprocess.run([python, script, model, str(threads), sequences, logits], check=True)
        rows = np.load(logits, mmap_mode="r")
        ends = np.cumsum([len(chat.prompt) + len(chat.answer) for chat in chats])
        return [
            chat.select(rows[end - len(chat.prompt) - len(chat.answer) : end])
            for chat, end in zip(chats, ends, strict=True)
        ]


def compare(engine: str, exact: Sequence[Logprobs], found: Sequence[Logprobs]) -> Result:
    divergence = sum(float((np.exp(a) * (a - b)).sum()) for a, b in zip(exact, found, strict=True))
    same = [a.argmax(1) == b.argmax(1) for a, b in zip(exact, found, strict=True)]
    positions = sum(map(len, same))
    agreement = sum(int(one.sum()) for one in same) / positions
    whole = sum(bool(one.all()) for one in same)
    return Result(engine, divergence / positions, agreement, whole, len(same), positions)


if __name__ == "__main__":
    main()
