"""The figures of a load test as one HTML file: no scripts, nothing to fetch."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from penstock.cli.load_test.client import Outcome
from penstock.cli.load_test.measures import PERCENTILES, histogram, over_time, samples
from penstock.cli.load_test.report import NAMES

WIDTH, HEIGHT, LEFT, BOTTOM = 560, 200, 56, 26
STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5d6b7c; --line: #d5dce5; --bar: #2f6fdb; --paper: #fff }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf2; --dim: #93a1b3; --line: #303a47; --bar: #6aa3ff;
  --paper: #12171e } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1180px;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1rem; margin: 0 0 .3rem } .dim { color: var(--dim) }
.cards { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1rem 0 }
.card { border: 1px solid var(--line); border-radius: 8px; padding: .6rem 1rem } .card b { display: block;
  font-size: 1.3rem } table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
td, th { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line) }
td:first-child, th:first-child { text-align: left } th { color: var(--dim); font-weight: normal }
.charts { display: flex; flex-wrap: wrap; gap: 1.5rem } svg { max-width: 100%; height: auto } text { fill: var(--dim);
  font-size: 12px } rect { fill: var(--bar) } polyline { fill: none; stroke: var(--bar); stroke-width: 1.5 }
.axis { stroke: var(--line) }
"""


def html_report(title: str, details: dict[str, str], found: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    taken = samples(outcomes)
    charts = [_histogram(NAMES[name], taken[name]) for name in NAMES if len(taken[name]) > 1]
    if outcomes:
        rates = over_time(outcomes, found["seconds"], 80)
        charts.append(_curve("Output over time: pieces per second", rates, found["seconds"]))
    facts = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in details.items())
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style><h1>{escape(title)}</h1>{_cards(found)}{_table(found)}"
        f'<div class="charts">{"".join(charts)}</div><h2>The test</h2><table>{facts}</table></html>\n'
    )


def _cards(found: dict[str, Any]) -> str:
    errors = ", ".join(f"{count} × {what}" for what, count in found["errors"].items())
    cards = {
        "answered": f"{found['answered']} of {found['requests']}",
        "errors": errors or "none",
        "requests/s": f"{found['requests_per_s']:.2f}",
        "output tokens/s": f"{found['output_tokens_per_s']:,.0f}",
        "tokens/s with prompts": f"{found['total_tokens_per_s']:,.0f}",
        "seconds": f"{found['seconds']:.1f}",
    }
    if found["targets_ms"]:
        cards["goodput, requests/s"] = f"{found['goodput_requests_per_s']:.2f} ({found['good_share'] or 0:.0%})"
        cards["targets"] = ", ".join(f"{name.upper()} {limit:g} ms" for name, limit in found["targets_ms"].items())
    boxes = (f'<div class="card"><b>{escape(value)}</b>{escape(name)}</div>' for name, value in cards.items())
    return f'<div class="cards">{"".join(boxes)}</div>'


def _table(found: dict[str, Any]) -> str:
    heads = ("milliseconds", "mean", *(f"p{share}" for share in PERCENTILES), "max")
    rows = [
        f"<tr><td>{NAMES[name]}</td>" + "".join(f"<td>{value:,.1f}</td>" for value in values.values()) + "</tr>"
        for name, values in found["latencies_ms"].items()
        if values is not None
    ]
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{''.join(rows)}</table>"


def _frame(title: str, inner: str, top: str, left: str, right: str) -> str:
    base = HEIGHT - BOTTOM
    return (
        f'<figure style="margin:0"><h2>{escape(title)}</h2>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(title)}">'
        f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH}" y2="{base}"/>{inner}'
        f'<text x="{LEFT - 6}" y="14" text-anchor="end">{top}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 8}">{left}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 8}" text-anchor="end">{right}</text></svg></figure>'
    )


def _histogram(title: str, values: Sequence[float]) -> str:
    edges, counts = histogram(values, 40)
    most, room = max(counts), HEIGHT - BOTTOM - 8
    width = (WIDTH - LEFT) / len(counts)
    bars = "".join(
        f'<rect x="{LEFT + place * width:.1f}" y="{HEIGHT - BOTTOM - room * count / most:.1f}" '
        f'width="{width - 1:.1f}" height="{room * count / most:.1f}"><title>{count}</title></rect>'
        for place, count in enumerate(counts)
        if count
    )
    return _frame(title, bars, str(most), f"{edges[0] * 1000:,.1f} ms", f"{edges[-1] * 1000:,.1f} ms (p99)")


def _curve(title: str, values: Sequence[float], seconds: float) -> str:
    most, room = max(values) or 1.0, HEIGHT - BOTTOM - 8
    step = (WIDTH - LEFT) / max(1, len(values) - 1)
    points = " ".join(
        f"{LEFT + place * step:.1f},{HEIGHT - BOTTOM - room * value / most:.1f}" for place, value in enumerate(values)
    )
    return _frame(title, f'<polyline points="{points}"/>', f"{most:,.0f}", "0 s", f"{seconds:.1f} s")
