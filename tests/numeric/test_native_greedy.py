"""SmolLM2's packed path against the float32 computation of the same dequantized weights: they choose another token only
where float32's two best logits are closer than the logit error, which is measured on other texts.

What the choice between two tokens depends on is the difference of their logits, so the error is that of differences: of
float32's best token to each of its next ones. `pytest -s` shows the figures.
"""

from __future__ import annotations

import bisect
import heapq
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from native_paged import NativePaged, needs_library
from paged import PagedModel, run_alone
from penstock.kernels.cpu.program import Pool
from penstock.model import Decoder, Packing, load, open_source
from penstock.store.files import ModelFiles
from penstock.tokenize import Tokenizer

pytestmark = [pytest.mark.weights, needs_library]
CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
CHUNK = 256  # tokens
CHUNKS = 3  # of each text
CONTENDERS = 16
PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
LICENSE = (ROOT / "LICENSE").read_text()  # texts that nobody edits
MEASURED_ON = (LICENSE[: len(LICENSE) // 2], inspect.getsource(bisect))
ASSERTED_ON = (LICENSE[len(LICENSE) // 2 :], inspect.getsource(heapq))
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Count from one to ten, in words.",
    "Why is the sky blue?",
    "Name three colours.",
    "Explain what a transformer is to a child.",
    "Translate to French: the cat sleeps.",
    "Write a function that adds two numbers in Python.",
)


@dataclass(frozen=True)
class Compared:
    """Positions of some texts."""

    margins: Tensor  # [n] between float32's two best logits
    errors: Tensor  # [n, contenders] of the differences to the best
    differs: Tensor  # [n] bool: the packed path's best is another token

    def error(self, part: float) -> float:
        """What this part of all errors is not above."""
        sizes = self.errors.abs().flatten()
        return float(sizes.kthvalue(int(part * len(sizes))).values)

    def lost_margins(self) -> list[float]:
        """Where the packed path chooses otherwise, the largest first."""
        return sorted((round(margin, 3) for margin in self.margins[self.differs].tolist()), reverse=True)


class Both:
    """The model twice: packed on the native kernels with float16 pages, as it is served; dequantized on torch's."""

    def __init__(self, files: ModelFiles) -> None:
        assert files.tokenizer is not None
        self.encode = Tokenizer.load(files.tokenizer).encode
        self._packed, self._exact = self._load(files, Packing()), self._load(files, None)
        self._pool = Pool(2)

    def compare(self, chunks: Iterable[Sequence[int]], *, skip: int = 0) -> Compared:
        """At all positions but the first `skip` of each chunk."""
        parts = [self._compare(chunk, skip) for chunk in chunks]
        margins, errors, differs = (torch.cat(column) for column in zip(*parts, strict=True))
        return Compared(margins, errors, differs)

    def _compare(self, tokens: Sequence[int], skip: int) -> tuple[Tensor, Tensor, Tensor]:
        exact, packed = run_alone(self._exact, tokens, block_size=16)[skip:], self._packed_logits(tokens)[skip:]
        best = exact.topk(CONTENDERS + 1)
        theirs = packed.gather(1, best.indices)
        errors = (theirs[:, :1] - theirs[:, 1:]) - (best.values[:, :1] - best.values[:, 1:])
        return best.values[:, 0] - best.values[:, 1], errors, packed.argmax(1) != best.indices[:, 0]

    def answers(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        """The prompts with float32's greedy continuations."""
        model = PagedModel(self._exact, block_size=16)
        for prompt in prompts:
            model.add(prompt)
        portions = {index: len(prompt) for index, prompt in enumerate(prompts)}
        for _ in range(count):
            model.step(portions)
            for sequence in model.sequences:
                sequence.tokens.append(int(sequence.logits[-1][-1].argmax()))
            portions = dict.fromkeys(portions, 1)
        return [sequence.tokens for sequence in model.sequences]

    def _packed_logits(self, tokens: Sequence[int]) -> Tensor:
        model = NativePaged(self._packed, self._pool, block_size=16, dtype=torch.float16)
        model.step({model.add(tokens): len(tokens)})
        return model.logits(0)

    @staticmethod
    def _load(files: ModelFiles, packing: Packing | None) -> Decoder:
        source = open_source(files.weights, files.format)
        return load(files.spec, source, dtype=torch.float32, device=CPU, context=512, packing=packing)


@pytest.fixture(scope="module")
def both(smollm2: ModelFiles) -> Both:
    return Both(smollm2)


@pytest.fixture(scope="module")
def error(both: Both) -> float:
    """What one difference in a thousand is further off by."""
    found = both.compare(chunk for text in MEASURED_ON for chunk in chunks(both, text))
    show("measured", found)
    return found.error(0.999)


def chunks(both: Both, text: str) -> list[list[int]]:
    tokens = both.encode(text)
    return [tokens[start : start + CHUNK] for start in range(0, CHUNKS * CHUNK, CHUNK)]


def show(name: str, found: Compared) -> None:
    quantiles = ", ".join(f"{100 * part:g}% {found.error(part):.3f}" for part in (0.5, 0.9, 0.99, 0.999, 1))
    print(f"\n{name}: {len(found.margins)} positions, errors of differences: {quantiles}")
    print(f"other choices: {int(found.differs.sum())}, the largest margins there:", *found.lost_margins()[:5])


def test_the_error_is_small(error: float) -> None:
    """A worse packed path would raise what is asserted below together with what it is asserted against."""
    assert 0.1 < error < 1.2


def test_texts(both: Both, error: float) -> None:
    found = both.compare(chunk for text in ASSERTED_ON for chunk in chunks(both, text))
    show("asserted on texts", found)
    assert 0 < len(found.lost_margins()) < 0.1 * len(found.margins)
    assert max(found.lost_margins()) < error


def test_answers(both: Both, error: float) -> None:
    """Where both have the same answer up to here, as teacher-forcing has it: float32's own greedy answers."""
    prompts = [both.encode(PROMPT.format(question)) for question in QUESTIONS]
    found = both.compare(both.answers(prompts, 48), skip=max(map(len, prompts)) - 1)
    show("asserted on answers", found)
    assert 0 < len(found.lost_margins()) < 0.1 * len(found.margins)
    assert max(found.lost_margins()) < error
