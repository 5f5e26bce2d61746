"""penstock show: what is known of a model, without loading or downloading it."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from penstock.cli.options import debug_option
from penstock.cli.text import count_text, size_text
from penstock.errors import ModelNotFound
from penstock.store.catalogue import Entry, find_entry
from penstock.store.files import ModelFiles
from penstock.store.kv_types import KvTypes
from penstock.store.resolve import check_name, resolve


@click.command()
@click.argument("model")
@click.option("--template", is_flag=True, help="Print the chat template alone.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@debug_option
def show(model: str, template: bool, as_json: bool) -> None:
    """Show where MODEL comes from and, if it is on this machine, its architecture, context, template and sampling."""
    entry = find_entry(model)
    try:
        files = resolve(model, offline=True)
    except ModelNotFound:
        check_name(model)
        files = None
    if template:
        if files is None or files.chat_template is None:
            why = "it is not pulled" if files is None else "it has none"
            raise ModelNotFound(f"no chat template of {model} to show: {why}", param="model")
        click.echo(files.chat_template)
        return
    facts = describe(model, entry, files)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(facts)).decode())
    else:
        _print(facts)


def describe(name: str, entry: Entry | None, files: ModelFiles | None) -> dict[str, Any]:
    """Facts by the names that people see; those of the file itself win over the catalogue's."""
    facts: dict[str, Any] = {"name": entry.name if entry else name, "here": files is not None}
    if entry is not None:
        facts |= {
            "description": entry.description,
            "source": entry.source,
            "license": entry.license,
            "architecture": entry.architecture,
            "parameters": entry.parameters,
            "weights": entry.quantization,
            "quantizations": list(entry.quantizations),
            "size_bytes": entry.size_bytes or entry.about_bytes,
            "size_is_approximate": entry.size_bytes is None,
            "verified": entry.verified,
            "sampling": entry.sampling,
        }
    if files is not None:
        facts |= _facts_of_files(files)
    return {key: value for key, value in facts.items() if value is not None}


def _facts_of_files(files: ModelFiles) -> dict[str, Any]:
    from penstock.capacity.shape import shape_of

    spec = files.spec
    one_token = sum(spec.block_bytes(group, 1, KvTypes("float16", "float16")) for group in spec.cache_groups)
    return {
        "license": files.license,
        "architecture": spec.architecture,
        "parameters": count_text(shape_of(spec).parameters),
        "weights": spec.weights,
        "size_bytes": sum(path.stat().st_size for path in files.weights),
        "size_is_approximate": False,
        "context": spec.context,
        "vocabulary": spec.vocab_size,
        "layers": spec.num_layers,
        "hidden": spec.hidden_size,
        "heads": f"{spec.num_heads} query, {spec.num_kv_heads} key and value, of {spec.head_dim}",
        "kv_bytes_per_token": one_token,
        "chat_template": files.chat_template is not None,
        "sampling": dict(files.sampling),
        "files": [str(path) for path in files.weights],
    }


def _print(facts: dict[str, Any]) -> None:
    approximate = "about " if facts.pop("size_is_approximate", False) else ""
    shown: dict[str, str] = {}
    for key, value in facts.items():
        label = {"here": "on this machine", "kv_bytes_per_token": "KV per token", "size_bytes": "size"}.get(key, key)
        shown[label.replace("_", " ")] = _text(key, value, approximate)
    if not facts.get("verified", True):
        shown["verified"] = "no: this project has not pulled it; the size is approximate"
    if not facts["here"]:
        shown["to get it"] = f"penstock pull {facts['name']}"
    width = max(map(len, shown))
    for label, text in shown.items():
        if text:
            click.echo(f"{click.style(f'{label:{width}}', dim=True)}  {text}")


def _text(key: str, value: Any, approximate: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_bytes") or key == "kv_bytes_per_token":
        return approximate + size_text(value) + (" of 16-bit keys and values" if key.startswith("kv") else "")
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
