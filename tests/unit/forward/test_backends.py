"""The CPU backends over hand-made plans, with real tiny models and transformers as the oracle."""

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import tiny_models
from helpers.native_paged_model import make_native_pages, needs_library
from helpers.paged_model import make_pages
from penstock.flow import Admit, Extend, Inspection, Pooling, Row, SamplingParams, StepPlan, StepResult, TokenLogprobs
from penstock.forward import prompt_logprobs
from penstock.forward.native_backend import NativeBackend
from penstock.forward.pooling import Embedders
from penstock.forward.torch_backend import TorchBackend
from penstock.forward.torch_hidden_states import TorchHiddenStates
from penstock.forward.warm_up import run_warm_up_steps
from penstock.kernels.cpu.program import Pool
from penstock.kernels.interface import Linear
from penstock.kernels.torch_ops import TorchOperations
from penstock.kernels.weight import Form
from penstock.model import Decoder, PackedForm, load, open_source
from penstock.model.weights.dense_form import DenseForm
from penstock.model.weights.form import DeviceForm
from penstock.store import hf_folder

BLOCK = 4
BLOCKS = 400
CONTEXT = 128
GREEDY = SamplingParams(temperature=0.0)
DENSE = DenseForm(torch.float32, torch.device("cpu"))


@dataclass
class Models:
    model: Decoder
    oracle: Any


FAMILIES = ["llama", "gemma3"]  # one with a single cache group, one with two


def _models(name: str, folder: Path, form: DeviceForm) -> Models:
    tiny_models.make(name, folder)
    files = hf_folder.read(folder, "tiny")
    model = load(files.spec, open_source(files.weights, files.format), form, context=CONTEXT)
    return Models(model, tiny_models.oracle(folder))


@pytest.fixture(
    scope="module", params=[*FAMILIES, *(pytest.param(f"native {name}", marks=needs_library) for name in FAMILIES)]
)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """With torch's operations and through the native program."""
    native, _, name = request.param.rpartition(" ")
    return _models(name, tmp_path_factory.mktemp(name), PackedForm() if native else DENSE)


@pytest.fixture(scope="module", params=FAMILIES)
def dense_models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return _models(request.param, tmp_path_factory.mktemp(request.param), DENSE)


@cache
def pool() -> Pool:
    return Pool(2)


def make_backend(model: Decoder, slots: int) -> TorchBackend | NativeBackend:
    """Of packed weights the native one."""
    spec = model.spec
    if model.head.form is Form.PACKED:
        pages = make_native_pages(spec, BLOCKS, BLOCK, "float32")
        return NativeBackend(model, pool(), pages, context=CONTEXT, max_sequences=slots, step_tokens=256)
    pages = make_pages(spec, BLOCKS, BLOCK, torch.float32)
    return TorchBackend(model, pages, context=CONTEXT, max_sequences=slots)


@dataclass
class Sequence_:
    slot: int
    tokens: list[int]
    computed: int = 0
    pending: int = 0  # tokens drawn by steps not settled yet
    blocks: list[list[int]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    pooling: Pooling | None = None
    embeddings: list[bytes] = field(default_factory=list)
    inspections: list[Inspection] = field(default_factory=list)


class Desk:
    """A scheduler run by hand: says which sequence computes how much, keeps blocks (scattered) and what comes back."""

    def __init__(self, model: Decoder, *, slots: int = 8, lookahead: int = 0, backend: TorchBackend | None = None):
        groups = model.spec.cache_groups
        self.backend = backend or make_backend(model, slots)
        self.lookahead = lookahead
        self.free = [random.Random(group).sample(range(1, BLOCKS), BLOCKS - 1) for group, _ in enumerate(groups)]
        self.sequences: dict[str, Sequence_] = {}
        self.admits: list[Admit] = []
        self.flying: list[tuple[int, list[Sequence_]]] = []
        self.number = 0

    def admit(
        self,
        name: str,
        slot: int,
        tokens: Sequence[int],
        params: SamplingParams = GREEDY,
        *,
        prompt_length: int | None = None,
        seed: int = 0,
        first_blocks: int = 1,
        pooling: Pooling | None = None,
        inspect: int = 0,
    ) -> None:
        blocks = [[free.pop() for _ in range(first_blocks)] for free in self.free]
        self.sequences[name] = Sequence_(slot, list(tokens), blocks=blocks, pooling=pooling)
        held = [list(group) for group in blocks]
        length, ends = prompt_length or len(tokens), (tiny_models.END_TOKEN,)
        self.admits.append(Admit(slot, list(tokens), length, params, seed, 0, ends, held, pooling, inspect))

    def step(self, **counts: int) -> None:
        """Launch a step; at look-ahead 1 the one before it is settled only now."""
        self.number += 1
        order = sorted(counts, key=lambda name: counts[name] != 1)
        extends: list[Extend] = []
        rows = []
        for name in order:
            sequence, count = self.sequences[name], counts[name]
            end = sequence.computed + count
            for group, (blocks, free) in enumerate(zip(sequence.blocks, self.free, strict=True)):
                if new := [free.pop() for _ in range(-(-end // BLOCK) - len(blocks))]:
                    blocks += new
                    extends.append(Extend(sequence.slot, group, new))
            sample = end == len(sequence.tokens) + sequence.pending and sequence.pooling is None
            rows.append(Row(sequence.slot, sequence.computed, count, sample))
            sequence.computed = end
            sequence.pending += sample
        self.backend.launch(StepPlan(self.number, self.admits, extends, rows))
        self.admits = []
        self.flying.append((self.number, [self.sequences[name] for name in order]))
        while len(self.flying) > self.lookahead:
            self.settle()

    def settle(self) -> StepResult:
        number, sequences = self.flying.pop(0)
        result = self.backend.collect()
        assert result.number == number
        for sequence, row in zip(sequences, result.rows, strict=True):
            sequence.tokens += row.tokens
            sequence.pending -= len(row.tokens)
            sequence.logprobs += row.logprobs or []
            sequence.prompt_logprobs += row.prompt_logprobs or []
            sequence.embeddings += [row.embedding] if row.embedding is not None else []
            sequence.inspections += [row.inspection] if row.inspection is not None else []
        return result

    def run(self, name: str, count: int, **others: int) -> list[int]:
        """Compute what `name` lacks, then draw until it has `count` more tokens."""
        sequence = self.sequences[name]
        known = len(sequence.tokens)
        while len(sequence.tokens) + sequence.pending < known + count:
            self.step(**{name: len(sequence.tokens) + sequence.pending - sequence.computed}, **others)
        while self.flying:
            self.settle()
        return sequence.tokens[known:]


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(2, tiny_models.VOCAB), k=length)


def generate(oracle: Any, tokens: list[int], count: int) -> list[int]:
    """transformers' greedy tokens, the end token being one like the others."""
    inputs = torch.tensor([tokens])
    output = oracle.generate(
        inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=count, eos_token_id=9999
    )
    return output[0, len(tokens) :].tolist()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_greedy_tokens_are_those_of_transformers(models: Models, lookahead: int) -> None:
    """Chunked prompts, mixed steps, scattered blocks, slots out of order, and a slot used again by a shorter one."""
    desk = Desk(models.model, lookahead=lookahead)
    prompts = {"a": prompt(37, 1), "b": prompt(5, 2), "c": prompt(50, 3), "d": prompt(1, 4)}
    desk.admit("a", 6, prompts["a"])
    desk.step(a=10)
    desk.admit("b", 0, prompts["b"], first_blocks=3)
    desk.step(a=13, b=5)
    desk.step(b=1, a=14)
    desk.admit("c", 3, prompts["c"])
    for _ in range(4):
        desk.step(a=1, b=1, c=12)
    for _ in range(3):
        desk.step(b=1)
    desk.step(a=1, b=1, c=2)
    while desk.flying:
        desk.settle()
    b = desk.sequences.pop("b")
    desk.admit("d", b.slot, prompts["d"])
    for _ in range(12):
        desk.step(a=1, d=1, c=1)
    while desk.flying:
        desk.settle()
    for name, sequence in {**desk.sequences, "b": b}.items():
        drawn = sequence.tokens[len(prompts[name]) :]
        assert len(drawn) >= 9
        assert drawn == generate(models.oracle, prompts[name], len(drawn)), name


PARAMS = {
    "temperature": SamplingParams(temperature=0.8),
    "filtered": SamplingParams(temperature=1.2, top_k=40, top_p=0.9),
    "penalised": SamplingParams(temperature=0.7, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.3),
    "greedy penalised": SamplingParams(temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.5),
    "adjusted": SamplingParams(
        typical_p=0.9, logit_bias={7: 3.0, 11: -4.0}, banned_tokens=(5, 6), presence_penalty=0.2, logprobs=3
    ),
    "allowed": SamplingParams(temperature=1.5, allowed_tokens=tuple(range(10, 90)), min_p=0.01),
    "late end": SamplingParams(temperature=2.0, min_tokens=8, logit_bias={tiny_models.END_TOKEN: 100.0}),
}


@pytest.mark.parametrize("name", PARAMS)
def test_a_seeded_sequence_does_not_depend_on_neighbours_slots_or_lookahead(models: Models, name: str) -> None:
    params, tokens = PARAMS[name], prompt(19, 7)

    def alone(lookahead: int) -> list[int]:
        desk = Desk(models.model, lookahead=lookahead)
        desk.admit("x", 0, tokens, params, seed=42)
        return desk.run("x", 16)

    expected = alone(0)
    assert alone(1) == expected

    desk = Desk(models.model, lookahead=1)
    for slot, (other, wanted) in enumerate(PARAMS.items()):
        desk.admit(f"other{slot}", slot, prompt(9, slot), wanted, seed=len(other))
    desk.step(other0=9, other1=4, **{f"other{slot}": 9 for slot in range(2, len(PARAMS))})
    desk.admit("x", 7, tokens, params, seed=42)
    desk.step(x=12, other0=1, other1=5)
    assert desk.run("x", 16, other0=1, other1=1, other4=1, other6=1) == expected
    if name == "late end":
        assert tiny_models.END_TOKEN not in expected[:8]
        assert expected[8] == tiny_models.END_TOKEN


@needs_library
@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_native_program_draws_what_torch_draws(tmp_path: Path, family: str, name: str) -> None:
    files = hf_folder.read(tiny_models.make(family, tmp_path), "tiny")
    drawn = []
    for form in (DENSE, PackedForm()):
        source = open_source(files.weights, files.format)
        model = load(files.spec, source, form, context=CONTEXT)
        desk = Desk(model)
        desk.admit("other", 0, prompt(9, 1))
        desk.admit("x", 1, prompt(30, 2), PARAMS[name], prompt_length=21, seed=3)
        desk.step(other=9, x=30)
        drawn.append(desk.run("x", 40, other=1))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("name", ["penalised", "greedy penalised", "late end"])
def test_a_preempted_sequence_goes_on_as_if_nothing_had_happened(models: Models, name: str) -> None:
    params, tokens = PARAMS[name], prompt(11, 3)
    desk = Desk(models.model)
    desk.admit("x", 2, tokens, params, seed=5)
    expected = desk.run("x", 14)

    desk = Desk(models.model, lookahead=1)
    desk.admit("x", 2, tokens, params, seed=5)
    begun = desk.run("x", 6)
    desk.admit("y", 2, prompt(40, 9), PARAMS["penalised"])  # somebody else in the slot meanwhile
    desk.run("y", 3)
    desk.admit("x", 4, tokens + begun, params, prompt_length=len(tokens), seed=5)
    assert begun + desk.run("x", 8) == expected


def test_prompt_logprobs_over_chunks(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """In sub-chunks of three positions, beside rows that do not ask."""
    monkeypatch.setattr(prompt_logprobs, "PROMPT_LOGITS", 3 * tiny_models.VOCAB)
    tokens = prompt(23, 11)
    desk = Desk(models.model)
    desk.admit("x", 1, tokens, SamplingParams(temperature=0.0, prompt_logprobs=4))
    desk.admit("y", 0, prompt(8, 1))
    desk.step(x=10, y=8)
    desk.step(x=1, y=1)
    desk.step(x=11, y=1)
    desk.step(x=1, y=1)
    desk.step(x=1, y=1)
    sequence = desk.sequences["x"]
    assert desk.sequences["y"].prompt_logprobs == []
    assert len(sequence.tokens) == 25
    with torch.no_grad():
        expected = models.oracle(torch.tensor([tokens])).logits[0].log_softmax(-1)
    _assert_logprobs(sequence.prompt_logprobs, expected[:-1], tokens[1:], top=4)


def test_logprobs_of_drawn_tokens(models: Models) -> None:
    tokens = prompt(9, 12)
    desk = Desk(models.model, lookahead=1)
    desk.admit("x", 1, tokens, SamplingParams(temperature=1.5, logprobs=2, logit_bias={7: 3.0}), seed=1)
    desk.admit("y", 2, prompt(4, 1))
    desk.step(x=9, y=4)
    drawn = desk.run("x", 5, y=1)
    sequence = desk.sequences["x"]
    assert desk.sequences["y"].logprobs == []
    with torch.no_grad():
        expected = models.oracle(torch.tensor([sequence.tokens])).logits[0].log_softmax(-1)[8:-1]
    assert drawn == sequence.tokens[-5:]
    _assert_logprobs(sequence.logprobs, expected, sequence.tokens[9:], top=2)


def test_logprobs_go_to_their_own_rows(models: Models) -> None:
    """Beside a row that is not sampled, and in a slot whose last request asked for its prompt's."""
    desk = Desk(models.model)
    desk.admit("old", 3, prompt(6, 1), SamplingParams(prompt_logprobs=0))
    desk.step(old=6)
    desk.admit("x", 3, prompt(5, 2), SamplingParams(temperature=0.0, logprobs=0))
    desk.admit("y", 1, prompt(4, 3))
    desk.number += 1
    rows = [Row(1, 0, 1, False), Row(3, 0, 5, True)]
    extends = [Extend(3, group, [free.pop()]) for group, free in enumerate(desk.free)]
    desk.backend.launch(StepPlan(desk.number, desk.admits, extends, rows))
    first, second = desk.backend.collect().rows
    assert (first.tokens, first.logprobs, first.prompt_logprobs) == ([], None, None)
    assert second.logprobs is not None
    assert [entry.token for entry in second.logprobs] == second.tokens
    assert second.prompt_logprobs is None


def test_every_kind_of_result_in_one_step(models: Models) -> None:
    """An inspected draw, logprobs of output and prompt, and an embedding are what each is without the others."""
    params = SamplingParams(temperature=1.5, top_k=20, logit_bias={7: 3.0}, logprobs=2, prompt_logprobs=1)

    def run(inspect: int, others: bool) -> Sequence_:
        desk = Desk(models.model)
        desk.admit("x", 1, prompt(9, 12), params, seed=1, inspect=inspect)
        if others:
            desk.admit("y", 2, prompt(4, 1), PARAMS["adjusted"])
            desk.admit("z", 0, prompt(6, 1), pooling="last")
        desk.step(x=9, **({"y": 4, "z": 6} if others else {}))
        assert not others or len(desk.sequences["z"].embeddings) == len(desk.sequences["y"].logprobs) == 1
        desk.run("x", 2)
        return desk.sequences["x"]

    plain, inspected = run(0, others=False), run(5, others=True)
    (found,) = inspected.inspections
    assert found.drawn == inspected.tokens[9]
    assert [stage.name for stage in found.stages if stage.on] == ["model", "logit_bias", "temperature", "top_k"]
    assert found.stages[-1].kept == 20
    assert (plain.tokens, plain.inspections) == (inspected.tokens, [])
    for ours, theirs in zip(
        [*plain.logprobs, *plain.prompt_logprobs], [*inspected.logprobs, *inspected.prompt_logprobs], strict=True
    ):
        assert (ours.token, ours.rank) == (theirs.token, theirs.rank)
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)


def embedded(oracle: Any, tokens: list[int], pooling: Pooling) -> torch.Tensor:
    with torch.no_grad():
        hidden = oracle.model(torch.tensor([tokens])).last_hidden_state[0]
    return torch.nn.functional.normalize(hidden.mean(0) if pooling == "mean" else hidden[-1], dim=-1)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_embeddings_over_chunks_are_those_of_transformers(models: Models, lookahead: int) -> None:
    """Beside one that generates; the slot of one that was given up half-way is used by the next."""
    prompts: dict[Pooling, list[int]] = {"mean": prompt(41, 1), "last": prompt(30, 2)}
    desk = Desk(models.model, lookahead=lookahead)
    desk.admit("given up", 2, prompt(50, 3), pooling="mean")
    desk.admit("x", 5, prompt(9, 4))
    desk.step(**{"given up": 20}, x=9)
    desk.admit("mean", 2, prompts["mean"], pooling="mean")
    desk.admit("last", 0, prompts["last"], pooling="last")
    desk.step(mean=17, last=29, x=1)
    desk.step(mean=1, x=1)
    desk.step(mean=22, last=1, x=1)
    desk.step(mean=1, x=1)
    desk.run("x", 3)
    drawn = desk.sequences["x"].tokens[9:]
    assert drawn == generate(models.oracle, prompt(9, 4), len(drawn))
    assert desk.sequences["given up"].embeddings == desk.sequences["x"].embeddings == []
    for pooling, tokens in prompts.items():
        (packed,) = desk.sequences[pooling].embeddings
        assert desk.sequences[pooling].tokens == tokens
        found = torch.tensor(struct.unpack(f"<{len(packed) // 4}f", packed))
        assert found.norm().item() == pytest.approx(1.0, abs=1e-6)
        assert torch.allclose(found, embedded(models.oracle, tokens, pooling), atol=1e-5)


def test_the_mean_of_half_precision_states_is_taken_in_single() -> None:
    """Many equal states: added up in bfloat16, the sum would soon stop to grow."""
    hidden = torch.tensor([[1.0, 0.0]] * 1000 + [[0.0, 1.0]] * 1000, dtype=torch.bfloat16)
    embedders = Embedders()
    embedders.admit(Admit(0, [], 2000, SamplingParams(), 0, 0, (), [], "mean"))

    def states(part: torch.Tensor) -> TorchHiddenStates:
        return TorchHiddenStates(part, torch.zeros(1, 1), lambda first, end: part)

    assert embedders.add([Row(0, 0, 1500, False)], states(hidden[:1500]), [0, 1500]) is None
    pooled = embedders.add([Row(0, 1500, 500, False)], states(hidden[1500:]), [0, 500])
    assert pooled is not None
    assert struct.unpack("<2f", *pooled.packed()) == pytest.approx((0.5**0.5, 0.5**0.5))


def test_hidden_states_are_read_of_the_rows_that_want_them_and_no_longer(models: Models) -> None:
    desk = Desk(models.model)
    wanted = desk.backend._outputs.needs_hidden
    desk.admit("scored", 0, prompt(20, seed=1), SamplingParams(temperature=0.0, prompt_logprobs=0))
    desk.admit("left", 1, prompt(20, seed=2), pooling="mean")
    desk.step(scored=12, left=12)
    assert wanted([Row(0, 12, 8, True)])
    assert wanted([Row(1, 12, 8, False)])
    desk.step(scored=8)
    assert not wanted([Row(0, 20, 1, True)]), "its prompt has been scored"
    assert not wanted([Row(2, 0, 8, True)]), "nobody computes for the one that has left"


def test_prompt_chunks_that_are_not_sampled_give_no_tokens(models: Models) -> None:
    desk = Desk(models.model, lookahead=1)
    desk.admit("x", 0, prompt(12, 1))
    desk.step(x=4)
    desk.step(x=4)
    result = desk.settle()
    assert [(row.tokens, row.logprobs, row.prompt_logprobs) for row in result.rows] == [([], None, None)]


class Fails(TorchOperations):
    """Operations that break when told to."""

    broken: Callable[[], None] | None = None

    def linear(self, x: torch.Tensor, linear: Linear, onto: torch.Tensor | None = None) -> torch.Tensor:
        if self.broken is not None and linear.gate is not None:
            self.broken()
        return super().linear(x, linear, onto)


def test_an_exception_reaches_the_caller_and_leaves_the_backend_usable(dense_models: Models) -> None:
    def fail() -> None:
        raise RuntimeError("out of something")

    ops = Fails()
    pages = make_pages(dense_models.model.spec, BLOCKS, BLOCK, torch.float32)
    desk = Desk(
        dense_models.model,
        lookahead=1,
        backend=TorchBackend(dense_models.model, pages, context=CONTEXT, max_sequences=4, ops=ops),
    )
    desk.admit("x", 0, prompt(10, 1), PARAMS["penalised"])
    desk.step(x=10)
    ops.broken = fail
    with pytest.raises(RuntimeError, match="out of something"):
        desk.step(x=1)
    ops.broken = None
    desk.backend.reset()

    after = Desk(dense_models.model, backend=desk.backend)
    after.admit("y", 0, prompt(20, 2))
    assert after.run("y", 6) == generate(dense_models.oracle, prompt(20, 2), 6)


def test_warm_up_touches_nobody_s_blocks(dense_models: Models) -> None:
    pages = make_pages(dense_models.model.spec, 12, BLOCK, torch.float32)
    warm = TorchBackend(dense_models.model, pages, context=CONTEXT, max_sequences=4)
    groups = len(dense_models.model.spec.cache_groups)
    run_warm_up_steps(warm, 21, max_sequences=4, block_size=BLOCK, num_groups=groups)
    assert all(torch.isnan(tensor[1:]).all() for page in pages for tensor in (page.keys, page.values))
    assert not any(torch.isnan(page.keys[0]).any() for page in pages)


def _assert_logprobs(entries: list[TokenLogprobs], expected: torch.Tensor, tokens: list[int], top: int) -> None:
    assert [entry.token for entry in entries] == tokens
    for entry, row in zip(entries, expected, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token].item(), abs=1e-4)
        assert entry.rank == 1 + int((row > row[entry.token]).sum())
        best = row.topk(top)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [logprob for _, logprob in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)
