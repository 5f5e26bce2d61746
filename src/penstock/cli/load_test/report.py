"""The figures of a load test in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.load_test.client import Outcome
from penstock.cli.load_test.measures import PERCENTILES, histogram, over_time, samples
from penstock.cli.top_frame import spark

NAMES = {
    "ttft": "TTFT: time to first token",
    "tpot": "TPOT: per token after it",
    "itl": "ITL: between pieces",
    "e2e": "E2E: whole request",
}
BINS, BAR = 12, 40


def print_report(console: Console, found: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    console.print(_rates(found))
    console.print(_latencies(found))
    for name in ("ttft", "tpot"):
        if len(values := samples(outcomes)[name]) > 1:
            console.print(_bars(NAMES[name], values))
    if outcomes:
        line = spark(over_time(outcomes, found["seconds"], BAR), BAR)
        console.print(Text.assemble(("output over time  ", "dim"), line))


def _rates(found: dict[str, Any]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    errors = ", ".join(f"{count} x {what}" for what, count in found["errors"].items())
    rows = {
        "requests": f"{found['answered']} of {found['requests']} answered in {found['seconds']:.1f} s",
        "errors": errors or "none",
        "throughput": f"{found['requests_per_s']:.2f} requests/s, {found['output_tokens_per_s']:,.0f} output tok/s, "
        f"{found['total_tokens_per_s']:,.0f} tok/s with prompts",
    }
    if found["targets_ms"]:
        targets = ", ".join(f"{name.upper()} {limit:g} ms" for name, limit in found["targets_ms"].items())
        rows["goodput"] = (
            f"{found['goodput_requests_per_s']:.2f} requests/s ({found['good_share'] or 0:.0%} keep {targets})"
        )
    if found["sent_late_ms_max"] > 50:
        late = found["sent_late_ms_max"]
        rows["beware"] = f"requests were sent up to {late:.0f} ms late: this machine is too busy for the load"
    for name, text in rows.items():
        grid.add_row(Text(name, style="dim"), Text(text, style="red" if name == "beware" else ""))
    return Group(grid, Text(""))


def _latencies(found: dict[str, Any]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("milliseconds", no_wrap=True)
    for head in ("mean", *(f"p{share}" for share in PERCENTILES), "max"):
        table.add_column(head, justify="right")
    for name, values in found["latencies_ms"].items():
        if values is not None:
            table.add_row(NAMES[name], *(f"{value:,.1f}" for value in values.values()))
    return Group(table, Text(""))


def _bars(title: str, values: Sequence[float]) -> RenderableType:
    edges, counts = histogram(values, BINS)
    most = max(counts)
    lines = [Text(f"{title}, ms", style="dim")]
    for low, count in zip(edges, counts, strict=False):
        bar = "█" * round(BAR * count / most) or ("▏" if count else "")
        lines.append(Text.assemble(f"{low * 1000:10,.1f}  ", (f"{bar:{BAR}}", "cyan"), f"  {count}"))
    return Group(*lines, Text(""))
