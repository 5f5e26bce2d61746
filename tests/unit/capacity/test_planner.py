"""The whole answer: its parts agree with each other, and nonsense is refused by name."""

import math
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from msgspec.structs import asdict

from helpers.capacity_samples import devices, shapes
from penstock.capacity import plan, question
from penstock.capacity.answer import Plan
from penstock.capacity.device import PRESETS as DEVICES
from penstock.capacity.device import Device
from penstock.capacity.find import find_device, find_shape
from penstock.capacity.formats import FORMATS, KV_PAIRS, coded, packed
from penstock.capacity.memory import weights_bytes
from penstock.capacity.question import CPU_DEFAULTS, Question, question_for
from penstock.capacity.shape import PRESETS, Shape, shape_of
from penstock.capacity.support import formats_not_run
from penstock.errors import InvalidRequest, ModelNotFound, PenstockError

NUMBERS = {"layers": 80, "hidden": 8192, "intermediate": 28672, "heads": 64, "vocab": 128256, "context": 131072}


def planned(**values: Any) -> Plan:
    asked = question({"model": "llama-3.1-70b", "hardware": "h100-sxm", **values})
    shape, device = find_shape(asked.model, {}), find_device(asked.hardware, lambda: DEVICES["t4"])
    return plan(asked, shape, device)


def test_the_parts_of_an_answer_agree() -> None:
    made = planned(tensor_parallel=4, rate=20, hour_price=2.0)
    memory = made.memory
    assert memory.budget_bytes == pytest.approx(memory.weights_bytes + memory.workspace_bytes + memory.kv_bytes)
    assert memory.fits
    assert next(one for one in memory.formats if one.name == "bfloat16").weights_bytes == memory.weights_bytes
    four = next(one for one in made.parallel if one.degree == 4)
    assert (four.weights_bytes, four.concurrent_requests) == (memory.weights_bytes, made.kv.concurrent_requests)
    assert four.kv_bytes_per_token == made.kv.bytes_per_token / 4
    last = made.decode.curve[-1]
    assert (last.batch, four.tokens_per_s) == (made.kv.concurrent_requests, last.tokens_per_s)
    assert four.prefill_s == made.prefill.expected_s > made.prefill.ceiling_s
    assert made.speculation.by_batch[0].speedup == made.speculation.speedup
    throughput = made.profiles[-1]
    assert made.replicas is not None
    assert throughput.requests_per_s == pytest.approx(made.replicas.capacity_per_s)
    assert made.replicas.devices == 4 * made.replicas.replicas
    assert made.replicas.utilisation == pytest.approx(20 / made.replicas.replicas / made.replicas.capacity_per_s)
    assert made.cost is not None
    assert throughput.cost_per_million == pytest.approx(made.cost.blended_per_million)
    # what the two kinds of tokens cost is what a request costs
    parts = 1024 * made.cost.input_per_million + 256 * made.cost.output_per_million
    assert parts == pytest.approx((1024 + 256) * made.cost.blended_per_million)
    assert made.cost.at_rate_per_million is not None
    assert made.cost.at_rate_per_million > made.cost.blended_per_million  # devices that are not fully used


def test_a_model_that_does_not_fit_is_told_and_still_planned() -> None:
    made = planned(rate=1, hour_price=1)
    assert not made.memory.fits
    assert made.memory.missing_bytes > 60e9
    assert (made.kv.longest_context, made.kv.concurrent_requests, made.kv.tokens) == (0, 0, 0)
    assert (made.replicas, made.cost, made.profiles) == (None, None, [])
    assert [point.batch for point in made.decode.curve] == [1]
    assert any("over 2 devices" in note for note in made.notes)
    assert [one.name for one in made.memory.formats if one.fits] == [
        "int4-g128",
        "q6_k",
        "q5_k_m",
        "q4_k_m",
        "q5_k",
        "q4_k",
        "q5_1",
        "q5_0",
        "q4_1",
        "q4_0",
    ]


def test_a_degree_that_is_not_possible_says_why() -> None:
    made = planned(model="smollm2-135m")
    by_degree = {one.degree: one for one in made.parallel}
    assert by_degree[1].possible
    assert by_degree[2].problem == "9 heads cannot be split evenly over 2 devices"
    with pytest.raises(InvalidRequest, match="9 heads") as caught:
        planned(model="smollm2-135m", tensor_parallel=2)
    assert caught.value.param == "tensor_parallel"
    with pytest.raises(InvalidRequest, match="link_bytes_s"):
        planned(tensor_parallel=2, hardware={"memory_bytes": 1e12, "bandwidth_bytes_s": 1e12, "flops": 1e15})
    with pytest.raises(InvalidRequest, match="8 KV heads can be neither"):
        planned(tensor_parallel=3, model={**NUMBERS, "heads": 24, "kv_heads": 8, "head_dim": 64, "intermediate": 3000})


def test_profiles() -> None:
    latency, balanced, throughput = planned(model="llama-3.1-8b").profiles
    assert (latency.name, balanced.name, throughput.name) == ("latency", "balanced", "throughput")
    assert latency.batch == 1 < balanced.batch < throughput.batch
    assert latency.request_s < balanced.request_s < throughput.request_s
    assert latency.tokens_per_s < balanced.tokens_per_s < throughput.tokens_per_s
    assert balanced.request_tokens_per_s >= latency.request_tokens_per_s / 2


def test_a_least_speed_bounds_the_batch_and_needs_more_replicas() -> None:
    free, bound = (planned(model="llama-3.1-8b", rate=100, min_tokens_per_s=least) for least in (None, 40.0))
    assert free.replicas is not None
    assert bound.replicas is not None
    assert bound.replicas.batch < free.replicas.batch
    assert bound.replicas.replicas > free.replicas.replicas
    none = planned(model="llama-3.1-8b", rate=100, min_tokens_per_s=1e6)
    assert none.replicas is None
    assert any("Even alone" in note for note in none.notes)


def test_speculation_loses_where_the_batch_is_large() -> None:
    made = planned(model="llama-3.1-8b", prompt_tokens=64, output_tokens=64)
    gains = [one.speedup for one in made.speculation.by_batch]
    assert gains[0] > 2
    assert gains[-1] < 1
    assert gains == sorted(gains, reverse=True)


def test_numbers_instead_of_a_name() -> None:
    made = planned(model={**NUMBERS, "kv_heads": 8}, hardware=_numbers(DEVICES["h100-sxm"]))
    same = planned()
    assert made.model.parameters == same.model.parameters
    assert made.decode == same.decode
    assert planned(model=NUMBERS).kv.bytes_per_token == 8 * same.kv.bytes_per_token  # without kv_heads: all 64 heads


def _numbers(device: Device) -> dict[str, Any]:
    return {name: value for name, value in asdict(device).items() if name not in ("kind", "label")}


@pytest.mark.parametrize(
    ("values", "param", "words"),
    [
        ({"prompt_tokens": 0}, "prompt_tokens", "an integer >= 1"),
        ({"prompt_tokens": "many"}, "prompt_tokens", "an integer, got a string"),
        ({"prompt_tokens": 131_000, "output_tokens": 100}, "prompt_tokens", "131072"),
        ({"cached_share": 1}, "cached_share", "< 1"),
        ({"cached_share": -0.1}, "cached_share", ">= 0"),
        ({"tensor_parallel": 0}, "tensor_parallel", ">= 1"),
        ({"memory_fraction": 1.5}, "memory_fraction", "<= 1"),
        ({"compute_efficiency": 0}, "compute_efficiency", ">= 0.001"),
        ({"utilisation": 1}, "utilisation", "< 1"),
        ({"rate": 0}, "rate", ">="),
        ({"hour_price": -1}, "hour_price", ">= 0"),
        ({"acceptance": 1.1}, "acceptance", "<= 1"),
        ({"drafts": 0}, "drafts", ">= 1"),
        ({"weights": "q4_km"}, "weights", "did you mean q4_k_m"),
        ({"kv": "q4_0"}, "kv", "must be one of float32"),
        ({"promt_tokens": 1}, "promt_tokens", "did you mean prompt_tokens"),
        ({"model": "llama-3.1-70"}, "model", "did you mean llama-3.1-70b"),
        ({"model": 7}, "model", "a string or an object"),
        ({"model": {"layers": 3}}, "model.hidden", "required"),
        ({"model": {**NUMBERS, "heads": -1}}, "model.heads", ">= 1"),
        ({"model": {**NUMBERS, "kv_heads": 7}}, "model.kv_heads", "evenly"),
        ({"model": {**NUMBERS, "heads": 7}}, "model.head_dim", "required"),
        ({"model": {**NUMBERS, "windowed_layers": 81, "window": 9}}, "model.windowed_layers", "at most"),
        ({"model": {**NUMBERS, "windowed_layers": 8}}, "model.window", "required"),
        ({"model": {**NUMBERS, "hidn": 1}}, "model.hidn", "not a known field"),
        ({"hardware": "h100"}, "hardware", "did you mean h100"),
        ({"hardware": {"memory_bytes": 1e9, "bandwidth_bytes_s": 1e9}}, "hardware.flops", "required"),
        ({"hardware": {"memory_bytes": 0, "bandwidth_bytes_s": 1e9, "flops": 1}}, "hardware.memory_bytes", ">= 1"),
        ({"measured_tokens_per_s": 1000}, "measured_tokens_per_s", "above what this hardware can do, 24.03"),
        ({"measured_prefill_tokens_per_s": 1e9}, "measured_prefill_tokens_per_s", "above what this hardware"),
        ({"input_price": -1}, "input_price", ">= 0"),
        ({"rate": 1e6, "tensor_parallel": 4, "prompt_tokens": 100_000}, "rate", "replicas"),
    ],
)
def test_nonsense_is_refused_by_name(values: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(PenstockError) as caught:
        planned(**values)
    assert isinstance(caught.value, InvalidRequest | ModelNotFound)
    assert caught.value.param == param
    assert words in caught.value.message


def test_a_model_here_comes_before_a_preset_of_its_name() -> None:
    mine = Shape(**{**asdict(PRESETS["llama-3.1-8b"]), "layers": 1})
    assert find_shape("llama-3.1-8b", {"llama-3.1-8b": mine}) is mine


def test_a_cpu_has_its_own_defaults() -> None:
    values = {"model": "smollm2-135m", "hardware": "ryzen-7950x", "step_tokens": 99}
    stored = Shape(**{**asdict(PRESETS["smollm2-135m"]), "stored": "q4_1"})
    asked = question_for(DEVICES["ryzen-7950x"], stored, values)
    assert (asked.weights, asked.kv, asked.max_sequences, asked.step_tokens) == ("q4_1", "float16", 64, 99)
    assert question_for(DEVICES["ryzen-7950x"], stored, {**values, "weights": "int8"}).weights == "int8"
    assert question_for(DEVICES["t4"], stored, values).weights == "q4_1"
    floats = msgspec.structs.replace(stored, stored="float32")
    assert question_for(DEVICES["t4"], floats, values).weights == "bfloat16"
    assert set(CPU_DEFAULTS) <= set(Question.__struct_fields__)


def test_a_file_of_mixed_formats_is_planned_as_it_is_where_it_stays_so() -> None:
    half_and_half = {"Q4_K": 1, "Q6_K": 1}
    mixtures = {"cpu": packed("q4_k", half_and_half, {"Q8_0": 1}), "gpu": coded("q4_k", half_and_half)}
    mixed = msgspec.structs.replace(PRESETS["smollm2-135m"], stored="q4_k", mixtures=mixtures)
    bits = mixed.layers * mixed.layer_matrices * 7 + mixed.table * 8.5 + mixed.vectors * 32
    here, there = DEVICES["ryzen-7950x"], DEVICES["t4"]
    asked = question_for(here, mixed, {"model": "mixed", "hardware": here.name})
    made = plan(asked, mixed, here)
    assert made.memory.weights_bytes == made.model.weights_bytes == pytest.approx(bits / 8)
    sizes = {one.name: one.weights_bytes for one in made.memory.formats}
    assert sizes["q4_k"] == made.memory.weights_bytes
    assert sizes["q6_k"] == weights_bytes(mixed, FORMATS["q6_k"])
    bits = mixed.layers * mixed.layer_matrices * 6 + mixed.table * 16 + mixed.vectors * 32
    assert plan(asked, mixed, there).memory.weights_bytes == pytest.approx(bits / 8)


def test_measured_rates_take_the_place_of_efficiencies() -> None:
    asked = {"model": "llama-3.1-8b", "measured_tokens_per_s": 100.0, "measured_prefill_tokens_per_s": 20_000.0}
    for degree in (1, 4):  # the time on the link is no share of anything
        made = planned(**asked, tensor_parallel=degree)
        assert made.decode.curve[0].tokens_per_s == pytest.approx(100)
        assert made.prefill.tokens_per_s == pytest.approx(20_000)
    made = planned(**asked)
    assert made.question.bandwidth_efficiency == pytest.approx(100 / made.decode.curve[0].ceiling_tokens_per_s)
    assert planned(model="llama-3.1-8b").question.bandwidth_efficiency == 0.7  # with the defaults


def test_prices_of_an_api_beside_hours() -> None:
    priced = {
        "model": "llama-3.1-8b",
        "input_price": 0.5,
        "output_price": 2.0,
        "prompt_tokens": 1000,
        "output_tokens": 500,
    }
    alone = planned(**priced).prices
    assert alone is not None
    assert alone.per_request == pytest.approx(0.0015)
    assert alone.blended_per_million == pytest.approx(1.0)
    assert (alone.per_hour, alone.own_per_hour, alone.break_even_rate) == (None, None, None)
    made = planned(**priced, hour_price=5.4, rate=10)
    assert made.prices is not None
    assert made.replicas is not None
    assert made.prices.per_hour == pytest.approx(54)
    assert made.prices.own_per_hour == pytest.approx(5.4 * made.replicas.devices)
    assert made.prices.break_even_rate == pytest.approx(1.0)  # 3,600 requests an hour
    assert made.prices.break_even_utilisation == pytest.approx(1 / made.replicas.capacity_per_s)
    assert planned(model="llama-3.1-8b").prices is None
    free = planned(model="llama-3.1-8b", input_price=0, hour_price=1).prices
    assert free is not None
    assert free.break_even_rate is None


def test_what_penstock_cannot_run_is_said() -> None:
    plain = planned(model="llama-3.1-8b")
    assert plain.not_run == []
    made = planned(weights="q4_k_m", kv="float16,int4", tensor_parallel=2, hardware="mi300x")
    words = ("MI300X", "float16,int4")
    assert [word for word, sentence in zip(words, made.not_run, strict=True) if word in sentence] == list(words)
    assert any("not been timed on several GPUs" in note for note in made.notes)
    here = planned(model="smollm2-135m", hardware="ryzen-7950x", weights="q4_k_m", kv="int8")
    assert here.not_run == []
    assert planned(model="smollm2-135m", hardware="ryzen-7950x", weights="fp8", kv="float16").not_run != []
    assert ["fp8" in one for one in planned(model="llama-3.1-8b", hardware="a100-80gb", weights="fp8").not_run] == [
        True
    ]
    assert planned(model="llama-3.1-8b", hardware="h100-sxm", weights="fp8").not_run == []
    assert set(formats_not_run()["gpu"]["kv"]) == {pair for pair in KV_PAIRS if "float16" in pair}
    assert set(formats_not_run()["cpu"]["kv"]) == {"bfloat16", "fp8"} | {pair for pair in KV_PAIRS if "fp8" in pair}
    assert planned(model="smollm2-135m", hardware="ryzen-7950x", weights="q4_k_m", kv="int8,int4").not_run == []


def test_the_kv_cache_by_format_and_its_formula() -> None:
    made = planned(model="llama-3.1-70b", tensor_parallel=4, kv="int8")
    assert made.kv.formula == (
        "2 (K and V) × 80 layers × 8 KV heads × 128 (head dim) × 1.031 bytes (with its share of the scale: 8.25 bits) "
        "= 168,960 bytes per token"
    )
    by_name = {one.name: one for one in made.kv.formats}
    assert by_name["int8"].bytes_per_token == made.kv.bytes_per_token == 168_960
    assert by_name["int8"].concurrent_requests == made.kv.concurrent_requests
    assert by_name["int4"].bits == 4.5
    assert by_name["int4"].concurrent_requests > by_name["float16"].concurrent_requests
    assert "1.031 bytes (with its share of the scale: 8.25 bits)" in planned(kv="fp8").kv.formula
    assert "scale" not in planned(kv="bfloat16").kv.formula


def test_fp8_is_multiplied_in_fp8_where_a_card_can() -> None:
    asked = {"model": "llama-3.1-8b", "prompt_tokens": 4096}
    plain, small = planned(**asked), planned(**asked, weights="fp8")
    assert plain.prefill.bound == small.prefill.bound == "compute"
    assert 1.5 < plain.prefill.ceiling_s / small.prefill.ceiling_s < 2  # attention stays in 16 bit
    older = {**asked, "hardware": "a100-80gb"}
    assert planned(**older).prefill.ceiling_s == planned(**older, weights="fp8").prefill.ceiling_s


def test_devices_add_their_bandwidth_up() -> None:
    made = planned(model="llama-3.1-8b")
    one, two = made.parallel[:2]
    assert (one.bandwidth_bytes_s, two.bandwidth_bytes_s) == (3.35e12, 6.7e12)
    assert one.ceiling_tokens_per_s == made.decode.curve[0].ceiling_tokens_per_s
    assert one.allreduce_share == 0
    assert two.allreduce_share is not None
    assert 0 < two.allreduce_share < 0.5
    assert two.ceiling_tokens_per_s is not None
    assert one.ceiling_tokens_per_s < two.ceiling_tokens_per_s < 2 * one.ceiling_tokens_per_s


def test_drafts_that_are_never_right_cost_time() -> None:
    grid = {(one.acceptance, one.drafts): one.speedup for one in planned(model="llama-3.1-8b").speculation.grid}
    assert grid[0.0, 4] == pytest.approx(1 / (1 + 4 * 0.05), rel=0.01)
    assert grid[0.0, 8] < grid[0.0, 1] < 1
    assert grid[1.0, 8] > grid[0.9, 8]


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


@settings(max_examples=60, deadline=None)
@given(
    shapes(),
    devices(),
    st.fixed_dictionaries(
        {},
        optional={
            "prompt_tokens": st.integers(1, 1000),
            "output_tokens": st.integers(1, 1000),
            "cached_share": st.floats(0, 0.99),
            "rate": st.floats(0.001, 1000),
            "hour_price": st.floats(0, 100),
            "min_tokens_per_s": st.floats(0.1, 100),
            "acceptance": st.floats(0, 1),
            "max_sequences": st.integers(1, 300),
        },
    ),
)
def test_any_sensible_question_has_an_answer_of_finite_numbers(
    shape: Shape, device: Device, values: dict[str, Any]
) -> None:
    asked = question({"model": "any", "hardware": "any", **values})
    try:
        made = plan(asked, shape, device)
    except InvalidRequest as error:
        assert error.param in ("prompt_tokens", "rate")  # noqa: PT017
        return
    assert _finite(msgspec.to_builtins(made))
    assert made.memory.fits == (made.kv.concurrent_requests > 0)
    assert (made.memory.missing_bytes > 0) != made.memory.fits
    if made.memory.fits:
        assert made.kv.longest_context >= asked.prompt_tokens + asked.output_tokens


@pytest.mark.weights
def test_a_plan_of_the_real_model(smollm2: Any) -> None:
    shape = shape_of(smollm2.spec)
    made = plan(question({"model": "smollm2", "hardware": "t4"}), shape, DEVICES["t4"])
    assert made.model.weights_bytes == 2 * 134_515_008
    assert made.kv.bytes_per_token == 2 * 30 * 3 * 64 * 2
