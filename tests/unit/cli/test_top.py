import io
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from rich.console import Console

from penstock.cli.top_frame import SPARKS, frame, lost, map_cells, spark


def request(number: int, state: str = "running", **more: Any) -> dict[str, Any]:
    told = {"number": number, "request_id": f"req-{number:032}", "kind": "chat", "state": state, "t": 1_000_000}
    counts = {"prompt_tokens": 42, "cached_tokens": 32, "output_tokens": 7, "tokens_per_s": 45.1, "ttft_us": 50_000}
    return {**told, **counts, "waited_for": None, **more}


def snapshot(**more: Any) -> dict[str, Any]:
    stats = {
        "running": 3,
        "waiting": 2,
        "waiting_by_reason": {"slot": 0, "blocks": 2},
        "open": 5,
        "kv_use": 0.11,
        "tokens_per_s": 120.5,
        "prompt_tokens_per_s": 900.0,
        "steps": 12345,
        "step_us_mean": 21_000,
        "batch_mean": 3.2,
        "preemptions": 4,
        "prefix_hit_tokens": 4096,
        "prompt_tokens": 8192,
        "evictions": 12,
        "ttft_us_p50": None,
        "ttft_us_p95": 7_000_000,
        "errors": 1,
        "gpu": None,
        "ready": True,
        "restarts": 0,
    }
    names = ("tokens_per_s", "prompt_tokens_per_s", "waiting")
    group = {"total": 100, "free": 60, "held": 30, "shared": 5, "cached": 10, "resting": 0}
    return {
        "url": "http://127.0.0.1:8000",
        "facts": {"version": "0.1.0", "model": {"name": "tiny"}, "engine": {"device": "cpu", "dtype": "float32"}},
        "t": 3_725_000_000,
        "stats": stats,
        "alerts": [],
        "open": [request(1), request(2, "queued", waited_for="blocks", tokens_per_s=None, ttft_us=None)],
        "cache": {"block_size": 16, "groups": [{**group, "runs": [[30, 1, 7], [10, 3, 0], [60, 0, 0]]}]},
        "history": {name: [1.0, None, 2.0] for name in names},
        "minute": {
            "interval_s": 60.0,
            "ttft_us_p50": [None],
            "ttft_us_p95": [1_500_000],
            "inter_token_us_p50": [12_000],
            "e2e_us_p95": [9_000_000],
        },
        **more,
    }


def shown(told: dict[str, Any], width: int = 100, height: int | None = None) -> str:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    console.print(frame(told, width, height))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in text.splitlines())
    return text


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_frame_tells_all_of_it(width: int) -> None:
    text = shown(snapshot(), width)
    for expected in ("tiny", "cpu, float32", "120/s", "900/s", "12,345", "1.5 s", "2 blocks", "11% in use", "queued"):
        assert expected in text, expected
    assert text.count("█") >= 20


def test_latencies_are_of_the_minute_they_say() -> None:
    lines = [line for line in shown(snapshot(), 130).splitlines() if "│" in line]
    for name, figure in (("first token p95", "1.5 s"), ("between tokens", "12 ms"), ("request p95", "9 s")):
        assert figure in next(line for line in lines if name in line)
    assert "latencies, last minute" in shown(snapshot(), 130)
    empty = {name: [] for name in snapshot()["minute"]}
    assert "request p95     –" in shown(snapshot(minute=empty), 130)


def test_uptime_readiness_and_restarts() -> None:
    assert "up 1:02:05" in shown(snapshot())
    told = snapshot()
    told["stats"] |= {"ready": False, "restarts": 2}
    text = shown(told)
    assert "not ready" in text
    assert "2 restarts" in text


def test_alerts_are_on_top() -> None:
    alert = {"objective": "ttft_p95", "message": "2.0 s instead of 0.5 s: requests wait for blocks"}
    assert "! ttft_p95: 2.0 s instead" in shown(snapshot(alerts=[alert])).splitlines()[1]


def test_requests_without_room_are_counted() -> None:
    many = [request(number) for number in range(50)]
    text = shown(snapshot(open=many), height=30)
    assert len(text.splitlines()) <= 30
    assert "more" in text
    assert "more" not in shown(snapshot(open=many))
    assert "no open requests" in shown(snapshot(open=[]))


def test_a_gpu_is_shown() -> None:
    told = snapshot()
    told["stats"]["gpu"] = {"utilisation": 0.5, "memory_used": 40e9, "memory_total": 80e9}
    assert "50%, 40.0 GB" in shown(told, 130)


def test_a_lost_server_is_told() -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(lost("no server at x"))
    assert "no server at x" in console.file.getvalue()  # type: ignore[attr-defined]


def test_sparks() -> None:
    assert spark([0, 1, None, 2], 10) == f"{SPARKS[0]}{SPARKS[4]} {SPARKS[-1]}"
    assert spark([5, 1, 1], 2) == SPARKS[-1] * 2  # the oldest has no room
    assert spark([], 5) == spark([1], 0) == ""
    assert spark([0, 0], 2) == SPARKS[0] * 2


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 4)), min_size=1, max_size=30), st.integers(1, 200))
def test_the_map_has_a_character_for_every_so_many_blocks(runs: list[tuple[int, int]], cells: int) -> None:
    total = sum(length for length, _ in runs)
    states = list(map_cells([[length, state, 0] for length, state in runs], cells))
    assert len(states) == min(cells, total)
    if cells >= total:  # one for one
        assert states == [state for length, state in runs for _ in range(length)]
    assert set(states) <= {state for _, state in runs}


def test_of_equals_the_map_shows_what_is_used() -> None:
    assert list(map_cells([[1, 0, 0], [1, 1, 9]], 1)) == [1]
    assert list(map_cells([[3, 0, 0], [1, 1, 9]], 1)) == [0]
    assert list(map_cells([], 5)) == []
