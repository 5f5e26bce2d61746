from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from penstock.cli.bench import _check_address
from penstock.cli.load_test.client import Outcome
from penstock.cli.load_test.html_report import html_report
from penstock.cli.load_test.measures import histogram, over_time, percentile, summary
from penstock.cli.load_test.workload import from_trace, parse_range, read_trace, synthetic
from penstock.errors import InvalidRequest

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:05.0,300,8\n2023-11-16 18:17:03.9799600,4808,10\n"
MOONCAKE = (
    '{"timestamp": 2000, "input_length": 600, "output_length": 5, "hash_ids": [7, 9]}\n'
    '{"timestamp": 3000, "input_length": 700, "output_length": 6, "hash_ids": [7, 8]}\n'
)


def test_an_azure_trace_is_read_in_order_and_sped_up(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(AZURE.encode()))
    rows = read_trace(path)
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [(4808, 10), (300, 8)]
    assert rows[1].at_s == pytest.approx(1.02004)
    planned = from_trace(rows, limit=None, speed=2.0, longest=1000, seed=0)
    assert planned[1].at_s == pytest.approx(0.51002)
    assert (planned[0].input_tokens, planned[0].output_tokens) == (990, 10)
    assert len(planned[0].prompt.split()) == 990


def test_prompts_of_a_mooncake_trace_share_their_beginnings(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    first, second = from_trace(read_trace(path), limit=None, speed=1.0, longest=None, seed=0)
    assert (first.at_s, second.at_s) == (0.0, 1.0)
    words = first.prompt.split(), second.prompt.split()
    assert [len(one) for one in words] == [600, 700]
    assert words[0][:512] == words[1][:512]
    assert words[0][512:600] != words[1][512:600]


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "TIMESTAMP,x\n", AZURE + "yesterday,1,2\n", '{"timestamp": 1}'])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match="trace"):
        read_trace(path)
    with pytest.raises(InvalidRequest, match="cannot read"):
        read_trace(tmp_path / "nowhere")


def test_synthetic_requests() -> None:
    planned = synthetic(200, lengths="20:40", outputs="8", rate=10.0, shared=10, seed=3)
    assert planned == synthetic(200, lengths="20:40", outputs="8", rate=10.0, shared=10, seed=3)
    assert len({one.prompt for one in planned}) == 200
    assert len({tuple(one.prompt.split()[:10]) for one in planned}) == 1
    assert {len(one.prompt.split()) == one.input_tokens for one in planned} == {True}
    assert 20 <= min(one.input_tokens for one in planned) <= max(one.input_tokens for one in planned) <= 40
    assert 10 < planned[-1].at_s < 40  # 20 s in the mean
    assert all(one.at_s == 0 for one in synthetic(3, lengths="5", outputs="1", rate=None, shared=0, seed=0))


@pytest.mark.parametrize("given", ["0", "a", "9:3", "-4", "", "1:2:3"])
def test_lengths_must_be_a_range(given: str) -> None:
    with pytest.raises(InvalidRequest, match="input_tokens"):
        parse_range(given, "input_tokens")


def answered(sent: float, *pieces: float, tokens: int) -> Outcome:
    return Outcome(sent, sent, 100, tokens, list(pieces), pieces[-1])


OUTCOMES = [
    answered(0.0, 0.1, 0.2, 0.3, tokens=3),
    answered(1.0, 1.5, 1.7, tokens=2),
    Outcome(2.0, 2.0, error="429 queue_full", ended_s=2.1),
]


def test_figures_of_known_outcomes() -> None:
    found = summary(OUTCOMES, 2.0, {"ttft": 200.0, "tpot": 150.0})
    assert (found["requests"], found["answered"], found["errors"]) == (3, 2, {"429 queue_full": 1})
    assert found["output_tokens_per_s"] == 2.5
    assert found["total_tokens_per_s"] == 102.5
    latencies = found["latencies_ms"]
    assert latencies["ttft"]["mean"] == pytest.approx(300)
    assert latencies["tpot"] == pytest.approx({"mean": 150, "p50": 150, "p90": 190, "p95": 195, "p99": 199, "max": 200})
    assert latencies["itl"]["max"] == pytest.approx(200)
    assert latencies["e2e"]["max"] == pytest.approx(700)
    assert (found["goodput_requests_per_s"], found["good_share"]) == (0.5, pytest.approx(1 / 3))
    nothing = summary([], 0.0, {})
    assert (nothing["goodput_requests_per_s"], nothing["latencies_ms"]["ttft"]) == (None, None)


def test_plots() -> None:
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0
    assert sum(over_time(OUTCOMES, 2.0, 4)) * 0.5 == 5
    edges, counts = histogram([0.1] * 99 + [5.0], 4)
    assert (len(edges), sum(counts)) == (5, 100)
    page = html_report("<script>x", {"model": "<b>"}, summary(OUTCOMES, 2.0, {}), OUTCOMES)
    assert "<script" not in page
    assert "<b>" not in page.rpartition("The test")[2]
    assert page.count("<svg") == 5
    assert "http" not in page


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost"])
def test_this_machine_may_be_tested(url: str) -> None:
    _check_address(url, allowed=False)


@pytest.mark.parametrize("url", ["http://example.com", "http://10.0.0.1", "https://localhost.example.com"])
def test_others_need_consent(url: str) -> None:
    with pytest.raises(InvalidRequest, match="--allow-remote"):
        _check_address(url, allowed=False)
    _check_address(url, allowed=True)
