from dataclasses import replace as replace_degree

import pytest
from msgspec.structs import replace

from penstock.capacity import memory
from penstock.capacity.device import PRESETS as DEVICES
from penstock.capacity.formats import FORMATS, coded
from penstock.capacity.measured import Observed, StepSeen, compare
from penstock.capacity.shape import PRESETS
from penstock.capacity.speed import Speed

SHAPE, DEVICE = PRESETS["llama-3.1-8b"], DEVICES["h100-sxm"]
CEILING = Speed(SHAPE, DEVICE, FORMATS["bfloat16"], 16)
SEEN = Observed(
    weights="bfloat16",
    kv="bfloat16",
    weights_bytes=SHAPE.parameters * 2,
    kv_bytes=131_072.0 * 1000,
    kv_tokens=1000,
    step_tokens=8192,
    requests=10,
    prompt_tokens=1000.0,
    output_tokens=200.0,
)


def test_a_server_at_half_the_ceiling_is_told_so() -> None:
    seen = replace(
        SEEN,
        prefill_tokens_per_s=1000 / CEILING.prefill(1000).seconds / 2,
        steps=(StepSeen(1, CEILING.step(1, 1100).seconds * 4), StepSeen(8, CEILING.step(8, 1100).seconds * 2)),
    )
    made = compare(seen, SHAPE, DEVICE)
    assert made is not None
    assert [(row.label, round(row.ratio or 0, 6)) for row in made.rows] == [
        ("weights", 1.0),
        ("KV cache, per token", 1.0),
        ("prefill", 0.5),
        ("decode, batch 1", 0.25),
        ("decode, batch 8", 0.5),
    ]
    assert made.compute_efficiency == pytest.approx(0.5)
    assert made.bandwidth_efficiency == pytest.approx(0.25)  # of the smallest batch: nothing else comes in between


def test_what_has_not_been_seen_is_left_out() -> None:
    made = compare(SEEN, SHAPE, DEVICE)
    assert made is not None
    assert [row.name for row in made.rows] == ["weights_bytes", "kv_bytes_per_token"]
    assert made.compute_efficiency is made.bandwidth_efficiency is None


def test_ranks_on_gpus_have_the_bandwidth_of_all_of_them() -> None:
    """Those on a CPU share that of the machine."""
    seen = replace(SEEN, tensor_parallel=4, steps=(StepSeen(1, CEILING.step(1, 1100).seconds),))
    group = replace_degree(CEILING, degree=4)
    on_gpus, on_cpu = compare(seen, SHAPE, DEVICE), compare(seen, SHAPE, DEVICES["ryzen-7950x"])
    assert on_gpus is not None
    assert on_gpus.rows[-1].theory == pytest.approx(1 / group.step(1, 1100).seconds)
    alone = compare(replace(seen, tensor_parallel=1), SHAPE, DEVICES["ryzen-7950x"])
    assert on_cpu == alone


def test_a_server_that_has_done_nothing_has_nothing_to_tell() -> None:
    assert compare(replace(SEEN, requests=0), SHAPE, DEVICE) is None


def test_a_wrong_idea_of_the_hardware_gives_no_efficiency_above_1() -> None:
    seen = replace(SEEN, steps=(StepSeen(1, CEILING.step(1, 1100).seconds / 3),))
    made = compare(seen, SHAPE, DEVICE)
    assert made is not None
    assert made.bandwidth_efficiency == 1.0
    assert made.rows[-1].ratio == pytest.approx(3)


def test_a_mixture_is_held_against_itself() -> None:
    mixed = replace(SHAPE, stored="q4_1", mixtures={"gpu": coded("q4_1", {"Q4_1": 1, "Q8_0": 1})})
    made = compare(replace(SEEN, weights="q4_1", weights_bytes=1.0), mixed, DEVICE)
    assert made is not None
    assert made.rows[0].theory == memory.weights_bytes(mixed, mixed.format("q4_1", "gpu"))
    assert made.rows[0].theory > memory.weights_bytes(mixed, FORMATS["q4_1"])


def test_ceilings_go_by_the_bytes_that_are_there() -> None:
    """A GGUF file keeps some of its matrices in more bits than its name says."""
    step = (StepSeen(1, 1.0),)
    named = compare(replace(SEEN, weights="q4_0", steps=step), SHAPE, DEVICE)
    heavier = compare(replace(SEEN, weights="q4_0", weights_bytes=SEEN.weights_bytes * 2, steps=step), SHAPE, DEVICE)
    assert named is not None
    assert heavier is not None
    assert named.rows[0].theory == heavier.rows[0].theory == pytest.approx(SHAPE.parameters * 4.5 / 8, rel=0.001)
    assert (heavier.rows[-1].theory or 0) < (named.rows[-1].theory or 0)
