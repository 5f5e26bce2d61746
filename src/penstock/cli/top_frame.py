"""One frame of `penstock top`: the server's figures as text. The KV map has a character for one block or several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from penstock.cli.text import count_text, size_text, time_text

SPARKS = "▁▂▃▄▅▆▇█"
# states of a KV block, as /observe/cache numbers them: what it is called, its character and its colour
STATES = (
    ("free", "·", "dim"),
    ("in use", "█", "blue"),
    ("shared", "█", "magenta"),
    ("cached", "▒", "cyan"),
    ("resting", "░", "yellow"),
)
MAP_ROWS = 6
WIDE = 110  # columns, to show what a request is as well
REQUEST_STYLES = {"running": "green", "queued": "yellow", "accepted": "dim"}


def frame(snapshot: dict[str, Any], width: int, height: int | None) -> RenderableType:
    """Fits `width`, and `height` if there is one: requests that have no room are counted."""
    models = _models(snapshot)
    above: list[RenderableType] = [_header(snapshot), *models, *(_alert(alert) for alert in snapshot["alerts"])]
    above += [_figures(snapshot, width), _map(snapshot, width)]
    rows = None if height is None else max(1, height - 19 - len(models) - len(snapshot["alerts"]))
    return Group(*above, _requests(snapshot, width, rows))


def lost(reason: str) -> RenderableType:
    return Panel(Text(f"{reason}\ntrying again; q leaves"), title="no server", border_style="red")


def spark(values: Sequence[float | None], width: int) -> str:
    """The newest `width` values, from 0 to the largest; a space where there was nothing to measure."""
    shown = list(values)[-width:] if width else []
    most = max((value for value in shown if value is not None), default=0) or 1
    return "".join(
        " " if value is None else SPARKS[min(len(SPARKS) - 1, int(value / most * len(SPARKS)))] for value in shown
    )


def map_cells(runs: Sequence[Sequence[int]], cells: int) -> Iterator[int]:
    """The state that most of the blocks behind each of `cells` characters have; of equals, the one that is not free."""
    total = sum(length for length, *_ in runs)
    cells = min(cells, total)
    places = iter((state, length) for length, state, *_ in runs)
    state, left = next(places, (0, 0))
    for cell in range(cells):
        room = total * (cell + 1) // cells - total * cell // cells
        seen: Counter[int] = Counter()
        while room:
            taken = min(room, left)
            seen[state] += taken
            room, left = room - taken, left - taken
            if not left:
                state, left = next(places, (0, 0))
        yield max(seen, key=lambda one: (seen[one], one != 0))


def _header(snapshot: dict[str, Any]) -> Text:
    facts, stats = snapshot["facts"], snapshot["stats"]
    engine = facts["engine"]
    text = Text.assemble(
        ("penstock ", "bold"),
        f"{facts['version']}  ",
        (_source(facts), "bold cyan"),
        f"  {engine.get('device', '?')}, {engine.get('dtype', '?')}  {snapshot['url']}",
        f"  up {_clock(snapshot['t'] / 1e6)}  ",
        ("ready", "green") if stats["ready"] else ("not ready", "bold red"),
    )
    if stats["restarts"]:
        text.append(f"  {stats['restarts']} restarts", "yellow")
    text.no_wrap = True
    return text


def _source(facts: dict[str, Any]) -> str:
    """The model that is shown; with its replica where there are several."""
    name: str = facts["model"]["name"]
    models = facts.get("models", [])
    replicas = sum(len(model["replicas"]) for model in models)
    return f"{name}/{facts['replica']}" if len(models) > 1 or replicas > 1 else name


def _models(snapshot: dict[str, Any]) -> list[Text]:
    """The state and the load of all models, where there are several."""
    models = snapshot["facts"].get("models", [])
    if len(models) < 2 and all(len(model["replicas"]) < 2 for model in models):
        return []
    parts = []
    for model in models:
        loads = " ".join(f"{one['replica']}:{one['open']}" for one in model["replicas"])
        parts.append(f"{model['name']} {model['state']}" + (f" (open {loads})" if loads else ""))
    text = Text("models  " + "   ".join(parts), style="dim")
    text.no_wrap = True
    return [text]


def _alert(alert: dict[str, Any]) -> Text:
    return Text(f"! {alert['objective']}: {alert['message']}", style="bold red")


def _figures(snapshot: dict[str, Any], width: int) -> Table:
    sparks = max(0, min(30, width // 3 - 20))
    grid = Table.grid(expand=True)
    for _ in range(3):
        grid.add_column(ratio=1)
    grid.add_row(_throughput(snapshot, sparks), _latencies(snapshot), _queue(snapshot, sparks))
    return grid


def _throughput(snapshot: dict[str, Any], sparks: int) -> Panel:
    stats, history = snapshot["stats"], snapshot["history"]
    return _panel(
        "throughput",
        {
            "output": f"{_rate(stats['tokens_per_s'])} {spark(history['tokens_per_s'], sparks)}",
            "prompt": f"{_rate(stats['prompt_tokens_per_s'])} {spark(history['prompt_tokens_per_s'], sparks)}",
            "batch": _number(stats["batch_mean"]),
            "step": _time(stats["step_us_mean"]),
            "steps": f"{stats['steps']:,}",
            "cached": _share(stats["prefix_hit_tokens"], stats["prompt_tokens"]),
        },
    )


def _latencies(snapshot: dict[str, Any]) -> Panel:
    stats, minute = snapshot["stats"], snapshot["minute"]
    return _panel(
        "latencies, last minute",
        {
            "first token p50": _time(_last(minute["ttft_us_p50"])),
            "first token p95": _time(_last(minute["ttft_us_p95"])),
            "between tokens": _time(_last(minute["inter_token_us_p50"])),
            "request p95": _time(_last(minute["e2e_us_p95"])),
            "errors": str(stats["errors"]),
            "GPU": _gpu(stats["gpu"]),
        },
    )


def _queue(snapshot: dict[str, Any], sparks: int) -> Panel:
    stats = snapshot["stats"]
    reasons = ", ".join(f"{count} {reason}" for reason, count in stats["waiting_by_reason"].items() if count)
    return _panel(
        "requests",
        {
            "open": str(stats["open"]),
            "running": str(stats["running"]),
            "waiting": f"{stats['waiting']} {spark(snapshot['history']['waiting'], sparks)}",
            "for": reasons or "–",
            "preemptions": str(stats["preemptions"]),
            "evictions": str(stats["evictions"]),
        },
    )


def _panel(title: str, rows: dict[str, str]) -> Panel:
    table = Table.grid(padding=(0, 1))
    for name, value in rows.items():
        table.add_row(Text(name, style="dim"), Text(value, no_wrap=True))
    return Panel(table, title=title, title_align="left", border_style="dim")


def _map(snapshot: dict[str, Any], width: int) -> Panel:
    cache, inside = snapshot["cache"], max(20, width - 4)
    lines = []
    groups = cache["groups"]
    for group in groups:
        text = Text(no_wrap=False)
        for state in map_cells(group["runs"], inside * max(1, MAP_ROWS // len(groups))):
            _, character, style = STATES[state]
            text.append(character, style)
        lines.append(text)
    legend = Text()
    for name, character, style in STATES:
        legend.append(f"{character} ", style)
        legend.append(f"{name} {_count_of(groups, name):,}  ", "dim")
    use = snapshot["stats"]["kv_use"]
    title = (
        f"KV cache, {use:.0%} in use, {groups[0]['total']:,} blocks of {cache['block_size']} tokens"
        if groups
        else "KV cache"
    )
    return Panel(Group(*lines, legend), title=title, title_align="left", border_style="dim")


def _count_of(groups: Sequence[dict[str, Any]], state: str) -> int:
    return sum(group["held" if state == "in use" else state] for group in groups)


def _requests(snapshot: dict[str, Any], width: int, rows: int | None) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="dim")
    wide = width >= WIDE
    for name in ("#", "state", "kind", "id") if wide else ("#", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("prompt", "cached", "output", "tok/s", "first", "age"):
        table.add_column(name, justify="right", no_wrap=True, min_width=7)
    table.add_column("waited for", no_wrap=True)
    requests = snapshot["open"]
    for one in requests[:rows]:
        table.add_row(
            str(one["number"]),
            Text(one["state"], style=REQUEST_STYLES.get(one["state"], "")),
            *((one["kind"], one["request_id"][:20]) if wide else ()),
            str(one["prompt_tokens"]),
            str(one["cached_tokens"]),
            str(one["output_tokens"]),
            _number(one["tokens_per_s"]),
            _time(one["ttft_us"]),
            time_text((snapshot["t"] - one["t"]) / 1e6),
            one["waited_for"] or "",
        )
    if not requests:
        table.caption = "no open requests"
    elif rows is not None and len(requests) > rows:
        table.caption = f"and {len(requests) - rows} more"
    table.caption_justify = "left"
    return table


def _last(values: Sequence[float | None]) -> float | None:
    return values[-1] if values else None


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{count_text(value)}/s"


def _number(value: float | None) -> str:
    return "–" if value is None else count_text(value)


def _time(microseconds: float | None) -> str:
    return "–" if microseconds is None else time_text(microseconds / 1e6)


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%} of prompt tokens" if whole else "–"


def _gpu(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return "none"
    return f"{figures['utilisation']:.0%}, {size_text(figures['memory_used'])} of {size_text(figures['memory_total'])}"


def _clock(seconds: float) -> str:
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    return f"{hours}:{minutes % 60:02}:{int(seconds) % 60:02}"
