"""penstock plan: capacity of a model on given hardware."""

from __future__ import annotations

import difflib
import re
from typing import Any

import click
import msgspec

from penstock.capacity import shape
from penstock.capacity.answer import Plan
from penstock.capacity.find import THIS, find_device, find_shape
from penstock.capacity.planner import plan as compute
from penstock.capacity.probe import this_machine
from penstock.capacity.question import Question, question, question_for
from penstock.cli.options import debug_option, struct_options
from penstock.cli.remote import Remote, key_option
from penstock.errors import InvalidRequest, ModelNotFound
from penstock.settings import parse_bytes
from penstock.store.catalogue import DEFAULT
from penstock.store.resolve import resolve
from penstock.system import typed

# key on the command line -> field of capacity.question.DeviceNumbers
DEVICE_FIELDS = {
    "memory": "memory_bytes",
    "bandwidth": "bandwidth_bytes_s",
    "flops": "flops",
    "fp8": "fp8_flops",
    "link": "link_bytes_s",
}


@click.command()
@click.argument("model", required=False)
@click.option(
    "--hardware",
    multiple=True,
    default=(THIS,),
    show_default=True,
    help="A preset, `this` for this machine, or memory=80GB,bandwidth=2TB,flops=312T[,fp8=624T][,link=300GB]; with "
    "@PRICE, the price of an hour. Given several times, they are compared.",
)
@struct_options(Question)
@click.option("--server", metavar="URL", help="Ask a running server, and show its measured figures beside the theory.")
@key_option
@click.option("--list", "listed", is_flag=True, help="List model and hardware presets.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole plan as JSON.")
@debug_option
def plan(
    model: str | None,
    hardware: tuple[str, ...],
    server: str | None,
    api_key: str | None,
    listed: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Compute memory, TTFT, TPOT, throughput, replicas and cost of MODEL on given hardware; nothing is run.

    MODEL is a preset (--list), a catalogue name, a folder, a .gguf file, or its numbers, such as
    layers=32,hidden=4096,intermediate=14336,heads=32,kv_heads=8,vocab=128256,context=8192.
    The formulas are in docs/PLANNER.md.
    """
    from penstock.cli import plan_report  # rich takes its time

    if listed:
        plan_report.show_presets()
        return
    given = {name: value for name, value in values.items() if value is not None}
    remote = Remote(server, api_key) if server else None
    options = [{**given, **_hardware(one)} for one in hardware]
    made = [_here(model or DEFAULT, one) if remote is None else _asked_of(remote, model, one) for one in options]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(made if len(made) > 1 else made[0])).decode())
    elif len(made) > 1:
        plan_report.show_options(made)
    else:
        plan_report.show(made[0])


def _here(model: str, asked: dict[str, Any]) -> Plan:
    numbers = _numbers(model, "model")
    first = question({**asked, "model": numbers or model}, strict=False)  # its errors come first
    hardware = find_device(first.hardware, this_machine)
    shape = find_shape(first.model, {} if numbers else _local(model))
    return compute(question_for(hardware, shape, {**asked, "model": first.model}, strict=False), shape, hardware)


def _local(model: str) -> dict[str, shape.Shape]:
    """A model on this machine, unless a preset is named; nothing is downloaded."""
    if model in shape.PRESETS:
        return {}
    try:
        return {model: shape.shape_of(resolve(model, offline=True, weights=False).spec)}
    except ModelNotFound as error:
        close = difflib.get_close_matches(model.lower(), shape.PRESETS, n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        raise ModelNotFound(f"{error.message}. {guess}penstock plan --list has the presets", param="model") from None


def _asked_of(remote: Remote, model: str | None, asked: dict[str, Any]) -> Plan:
    presets = remote.get("/plan/presets")
    body = {"model": _numbers(model, "model") or model if model else presets["model"], **asked}
    return typed.convert(remote.post("/plan", body), Plan)


def _hardware(text: str) -> dict[str, Any]:
    """The fields of a question that an option says."""
    text, at, price = text.partition("@")
    return {"hardware": _device(text), **({"hour_price": price} if at else {})}


def _device(text: str) -> Any:
    numbers = _numbers(text, "hardware")
    if numbers is None:
        return text
    unknown = next((name for name in numbers if name not in DEVICE_FIELDS), None)
    if unknown is not None:
        raise InvalidRequest(f"hardware.{unknown} is not known; there are {', '.join(DEVICE_FIELDS)}", param="hardware")
    rate = re.compile(r"/s$")
    return {
        DEVICE_FIELDS[name]: float(parse_bytes(rate.sub("", value), f"hardware.{name}"))
        for name, value in numbers.items()
    }


def _numbers(text: str, param: str) -> dict[str, Any] | None:
    """`layers=32,heads=8` as a mapping; None if it is a name or a path."""
    if not re.fullmatch(r"\w+=[^=]*", text.split(",")[0]):
        return None
    pairs = [part.split("=", 1) for part in text.split(",")]
    if wrong := next((pair for pair in pairs if len(pair) != 2 or not all(pair)), None):
        raise InvalidRequest(f"{param}: {'='.join(wrong)!r} is not of the form name=number", param=param)
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"{param}: {twice} is given twice", param=param)
    return dict(pairs)
