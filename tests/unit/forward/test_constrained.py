"""The CPU backends with constrained rows, at both look-ahead depths, beside rows that are free."""

from pathlib import Path

import pytest
import torch

from helpers import tiny_models
from helpers.native_paged_model import make_native_pages, needs_library
from helpers.paged_model import make_pages
from penstock.flow import Admit, Backend, Constraint, Extend, FinishReason, Row, RowResult, SamplingParams, StepPlan
from penstock.forward.native_backend import NativeBackend
from penstock.forward.torch_backend import TorchBackend
from penstock.grammar.compiler import Compiler
from penstock.grammar.grammar_cache import GrammarCache
from penstock.kernels.cpu.program import Pool
from penstock.model import Decoder, PackedForm, load, open_source
from penstock.model.weights.dense_form import DenseForm
from penstock.store import hf_folder
from penstock.tokenize.tokenizer import Tokenizer

BLOCK, CONTEXT = 64, 64
WORDS = Constraint.regex("[a-f]{3}(-[a-f]{3}){0,5}")


class Engine:
    def __init__(self, folder: Path, *, native: bool) -> None:
        files = hf_folder.read(folder, "tiny")
        assert files.tokenizer is not None
        self.tokenizer = Tokenizer.load(files.tokenizer)
        source = open_source(files.weights, files.format)
        self.pool = Pool(2) if native else None
        form = PackedForm() if native else DenseForm(torch.float32, torch.device("cpu"))
        self.model: Decoder = load(files.spec, source, form, context=CONTEXT)
        self.grammars = GrammarCache(Compiler(files.tokenizer, files.spec.vocab_size, files.spec.end_tokens))

    def backend(self) -> Backend:
        if self.pool is not None:
            native_pages = make_native_pages(self.model.spec, 8, BLOCK, "float32")
            return NativeBackend(
                self.model,
                self.pool,
                native_pages,
                context=CONTEXT,
                max_sequences=4,
                step_tokens=64,
                grammars=self.grammars,
            )
        pages = make_pages(self.model.spec, 8, BLOCK, torch.float32)
        return TorchBackend(self.model, pages, context=CONTEXT, max_sequences=4, grammars=self.grammars)

    def run(self, requests: list[SamplingParams], lookahead: int, steps: int) -> list[list[RowResult]]:
        """Each sequence's results, step by step, from a prompt of three tokens on."""
        backend = self.backend()
        admits = [
            Admit(slot, [5, 6, 7], 3, params, 9, 0, (tiny_models.END_TOKEN,), [[slot + 1]])
            for slot, params in enumerate(requests)
        ]
        found: list[list[RowResult]] = [[] for _ in requests]
        flying = 0
        extends: list[Extend] = []
        for step in range(steps):
            start, count = (0, 3) if step == 0 else (step + 2, 1)
            rows = [Row(slot, start, count, True) for slot, _ in enumerate(requests)]
            backend.launch(StepPlan(step, admits if step == 0 else [], extends, rows))
            flying += 1
            while flying > (lookahead if step + 1 < steps else 0):
                for results, row in zip(found, backend.collect().rows, strict=True):
                    results.append(row)
                flying -= 1
        return found


@pytest.fixture(scope="module", params=["torch", pytest.param("native", marks=needs_library)])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(tiny_models.make("llama", tmp_path_factory.mktemp("llama")), native=request.param == "native")


def until_the_end(results: list[RowResult]) -> tuple[list[int], FinishReason | None]:
    tokens: list[int] = []
    for result in results:
        tokens += result.tokens
        if result.finish is not None or tokens[-1:] == [tiny_models.END_TOKEN]:
            return tokens, result.finish
    return tokens, None


@pytest.mark.parametrize("params", [{"temperature": 1.0}, {"temperature": 0.0}, {"temperature": 2.0, "top_k": 50}])
def test_neither_lookahead_nor_neighbours_change_a_constrained_answer(engine: Engine, params: dict[str, float]) -> None:
    bound = SamplingParams(constraint=WORDS, logprobs=1, **params)  # type: ignore[arg-type]
    free = SamplingParams(temperature=1.0)
    (alone,) = engine.run([bound], 0, 26)
    expected = until_the_end(alone)
    text = engine.tokenizer.decode(expected[0])
    assert all(len(word) == 3 and set(word) <= set("abcdef") for word in text.split("-"))
    (unbound,) = engine.run([free], 0, 26)
    for lookahead in (0, 1):
        beside, one, other = engine.run([free, bound, bound], lookahead, 26)
        assert until_the_end(one) == until_the_end(other) == expected
        assert [row.tokens for row in beside] == [row.tokens for row in unbound]
        assert not any(row.finish for row in beside)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_the_end_of_a_grammar_comes_with_its_last_token(engine: Engine, lookahead: int) -> None:
    (results,) = engine.run([SamplingParams(constraint=Constraint.choice(["xyz"]))], lookahead, 5)
    assert [row.finish for row in results[:2]] == [None, None]
    assert engine.tokenizer.decode([token for row in results[:3] for token in row.tokens]) == "xyz"
    assert results[2].finish is FinishReason.COMPLETE


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_dead_end_gives_no_token(engine: Engine, lookahead: int) -> None:
    (x,) = engine.tokenizer.encode("x", add_special=False)
    params = SamplingParams(constraint=Constraint.choice(["xyz"]), allowed_tokens=(x,), logprobs=2)
    free = SamplingParams(logprobs=0)
    results, beside = engine.run([params, free], lookahead, 3)
    assert (results[0].tokens, results[0].finish) == ([x], None)
    assert (results[1].tokens, results[1].finish, results[1].logprobs) == ([], FinishReason.DEAD_END, None)
    assert all(len(row.tokens) == len(row.logprobs or []) == 1 for row in beside)
