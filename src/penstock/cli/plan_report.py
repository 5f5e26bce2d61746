"""Prints a plan as tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.capacity import device, shape
from penstock.capacity.answer import Plan
from penstock.cli.text import count_text, size_text, time_text


def show(made: Plan) -> None:
    console = Console(highlight=False)
    several = f"{made.devices} × " if made.devices > 1 else ""
    console.print(Text(f"{made.model.name} on {several}{made.hardware.label}", style="bold"))
    tables = [_memory(made), _prefill(made), _decode(made), _parallel(made), _speculation(made), _profiles(made)]
    tables += [_replicas(made)] if made.replicas or made.cost or made.prices else []
    tables += [_measured_table(made)] if made.measured is not None else []
    for table in tables:
        console.print()
        console.print(table)
    console.print()
    for note in made.notes:
        console.print(Text(note, style="dim"))
    for sentence in made.not_run:
        console.print(Text(f"Not in Penstock yet. {sentence}", style="yellow"))


def show_options(plans: list[Plan]) -> None:
    """Several devices side by side."""
    console = Console(highlight=False)
    console.print(Text(plans[0].model.name, style="bold"))
    table = _table("hardware", "fits", "requests", "TTFT", "tok/s, one", "ceiling", "tok/s, all", "price/h", "per M")
    for made in plans:
        first, best = made.decode.curve[0], made.profiles[-1] if made.profiles else None
        several = f"{made.devices} × " if made.devices > 1 else ""
        table.add_row(
            f"{several}{made.hardware.name}",
            "yes" if made.memory.fits else Text(f"{size_text(made.memory.missing_bytes)} short", style="red"),
            f"{made.kv.concurrent_requests:,}",
            time_text(made.prefill.expected_s),
            count_text(first.tokens_per_s),
            count_text(first.ceiling_tokens_per_s),
            "" if best is None else count_text(best.tokens_per_s),
            "" if made.question.hour_price is None else f"{made.question.hour_price * made.devices:g}",
            "" if best is None or best.cost_per_million is None else f"{best.cost_per_million:.3g}",
        )
    console.print(table)


def show_presets() -> None:
    console = Console(highlight=False)
    table = _table("model", "parameters", "layers", "KV heads", "context")
    for one in shape.PRESETS.values():
        table.add_row(one.name, count_text(one.parameters), str(one.layers), str(one.kv_heads), f"{one.context:,}")
    console.print(table)
    console.print()
    table = _table("hardware", "memory", "bandwidth", "FLOP/s", "FP8", "link", "")
    for card in device.PRESETS.values():
        link = f"{size_text(card.link_bytes_s)}/s" if card.link_bytes_s else ""
        memory, bandwidth = size_text(card.memory_bytes), f"{size_text(card.bandwidth_bytes_s)}/s"
        fp8 = count_text(card.fp8_flops) if card.fp8_flops else ""
        table.add_row(card.name, memory, bandwidth, count_text(card.flops), fp8, link, card.label)
    console.print(table)


def _table(first: str, *columns: str) -> Table:
    table = Table(first, box=None, pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name, justify="right" if name else "left")
    return table


def _facts(title: str) -> Table:
    table = Table(title, "", box=None, pad_edge=False, header_style="dim")
    table.columns[0].min_width = 24
    return table


def _memory(made: Plan) -> Table:
    table, memory, kv = _facts("memory of one device"), made.memory, made.kv
    table.add_row("parameters", f"{count_text(made.model.parameters)}")
    table.add_row("weights", size_text(memory.weights_bytes))
    table.add_row("workspace of a step", size_text(memory.workspace_bytes))
    if memory.fits:
        table.add_row(
            "left for KV", f"{size_text(memory.kv_bytes)} of {size_text(memory.budget_bytes)}: {kv.tokens:,} tokens"
        )
    else:
        table.add_row("does not fit", Text(f"{size_text(memory.missing_bytes)} short", style="bold red"))
    over = f", over all {made.devices} devices" if made.devices > 1 else ""
    table.add_row("KV per token", f"{size_text(kv.bytes_per_token)}{over}")
    table.add_row("", Text(kv.formula, style="dim"))
    table.add_row("KV of a request", f"{size_text(kv.request_bytes)} at {kv.request_tokens:,} tokens{over}")
    table.add_row("longest context", f"{kv.longest_context:,} tokens")
    table.add_row("concurrent requests", f"{kv.concurrent_requests:,}")
    return table


def _prefill(made: Plan) -> Table:
    table, prefill = _facts("prefill"), made.prefill
    table.add_row(
        "prefill time", f"{time_text(prefill.expected_s)} expected, {time_text(prefill.ceiling_s)} at the ceiling"
    )
    table.add_row("prompt tok/s", f"{count_text(prefill.tokens_per_s)}, bound by {prefill.bound}")
    return table


def _decode(made: Plan) -> Table:
    table = _table("decode, batch", "TPOT", "tok/s", "per request", "ceiling", "bound by")
    for point in made.decode.curve:
        table.add_row(
            str(point.batch),
            time_text(point.expected_s),
            count_text(point.tokens_per_s),
            count_text(point.request_tokens_per_s),
            count_text(point.ceiling_tokens_per_s),
            point.bound,
        )
    return table


def _parallel(made: Plan) -> Table:
    table = _table("devices", "weights", "KV/token", "requests", "all-reduce", "prefill", "TPOT", "tok/s")
    for one in made.parallel:
        if one.weights_bytes is None or one.prefill_s is None or one.decode_s is None:
            continue  # not possible; the caption says why
        table.add_row(
            str(one.degree),
            size_text(one.weights_bytes),
            size_text(one.kv_bytes_per_token or 0),
            f"{one.concurrent_requests:,}" if one.fits else "no room",
            size_text(one.allreduce_bytes_per_token or 0),
            time_text(one.prefill_s),
            time_text(one.decode_s),
            count_text(one.tokens_per_s) if one.tokens_per_s else "",
        )
    if problems := [one.problem for one in made.parallel if one.problem]:
        table.caption, table.caption_justify = problems[0], "left"
    return table


def _speculation(made: Plan) -> Table:
    table, gain = _facts("speculation"), made.speculation
    table.add_row(
        f"{gain.drafts} drafts, {gain.acceptance:.0%} accepted",
        f"{gain.tokens_per_verification:.2f} tokens per verification, {gain.speedup:.2f}x at batch 1, "
        f"{gain.by_batch[-1].speedup:.2f}x at batch {gain.by_batch[-1].batch}",
    )
    best = f"{gain.best_drafts} drafts: {gain.best_speedup:.2f}x" if gain.best_drafts else "no drafts"
    table.add_row("best at batch 1", best)
    return table


def _profiles(made: Plan) -> Table:
    table = _table("profile", "batch", "TTFT", "tok/s each", "tok/s", "requests/s", "request", "per M")
    for one in made.profiles:
        table.add_row(
            one.name,
            str(one.batch),
            time_text(one.first_token_s),
            count_text(one.request_tokens_per_s),
            count_text(one.tokens_per_s),
            count_text(one.requests_per_s),
            time_text(one.request_s),
            "" if one.cost_per_million is None else f"{one.cost_per_million:.3g}",
        )
    return table


def _replicas(made: Plan) -> Table:
    table = _facts("under load")
    if (fleet := made.replicas) is not None:
        table.add_row(f"for {fleet.rate:g} requests/s", f"{fleet.replicas} replicas, {fleet.devices} devices")
        table.add_row("utilisation", f"{fleet.utilisation:.0%}, {fleet.in_flight:.1f} requests running per replica")
        table.add_row("queue wait", f"{fleet.wait_probability:.1%} of requests; p95 {time_text(fleet.wait_p95_s)}")
        table.add_row("TTFT, whole request", f"{time_text(fleet.first_token_s)}, {time_text(fleet.request_s)}")
    if (cost := made.cost) is not None:
        table.add_row("cost of 1M tokens", f"{cost.input_per_million:.3g} in, {cost.output_per_million:.3g} out")
        if cost.at_rate_per_million is not None:
            table.add_row("at that rate", f"{cost.at_rate_per_million:.3g}, input and output alike")
    if (prices := made.prices) is not None:
        price = f"{prices.blended_per_million:.3g} per 1M tokens, {prices.per_request:.3g} a request"
        table.add_row("at an API's prices", price)
        if prices.break_even_rate is not None:
            use = "" if prices.break_even_utilisation is None else f", {prices.break_even_utilisation:.0%} of a replica"
            table.add_row("own hardware pays from", f"{prices.break_even_rate:.3g} requests/s{use}")
    return table


def _measured_table(made: Plan) -> Table:
    assert made.measured is not None
    table = _table(f"measured over {made.measured.requests:,} requests", "theory", "measured", "share")
    for row in made.measured.rows:
        text = size_text if row.unit == "bytes" else count_text
        theory = "" if row.theory is None else text(row.theory)
        table.add_row(row.label, theory, text(row.measured), "" if row.ratio is None else f"{row.ratio:.0%}")
    return table
