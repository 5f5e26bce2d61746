"""penstock list, show and rm, on a cache folder of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from helpers.store_samples import write_gguf
from penstock.cli import penstock
from penstock.cli.ps import HEADS, _figures, _state, _until, shown_heads
from penstock.cli.remote import TIMEOUT_S, Remote
from penstock.cli.sleep import CHANGE_S
from penstock.errors import ModelNotFound
from penstock.store import sidecar
from penstock.store.catalogue import CATALOGUE

ENTRY = CATALOGUE["smollm2"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has a small file in the place of the default model."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    folder = tmp_path / "models" / ENTRY.key
    folder.mkdir(parents=True)
    write_gguf(folder / ENTRY.filename)
    sidecar.write(folder, ENTRY.filename, name="smollm2", license=ENTRY.license, sampling=ENTRY.sampling)
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(penstock, arguments, catch_exceptions=False)


def test_the_catalogue_is_listed_with_what_is_here(cache: Path) -> None:
    assert set(CATALOGUE) <= {row["name"] for row in json.loads(call("list", "--json").output)}
    assert [row["name"] for row in json.loads(call("list", "--pulled", "--json").output)] == ["smollm2"]
    shown = call("models", "llama3.2").output
    assert "llama3.2:1b" in shown
    assert "~810 MB" in shown
    assert "not been pulled and verified" in shown
    assert "gemma" not in shown
    assert "approximate" not in call("list", "--pulled").output
    assert "no such model" in call("list", "nonesuch").output


def test_a_model_is_shown_pulled_or_not(cache: Path) -> None:
    here = json.loads(call("show", "smollm2", "--json").output)
    assert (here["here"], here["verified"], here["license"]) == (True, True, "Apache-2.0")
    assert here["context"] > 0
    assert here["kv_bytes_per_token"] > 0
    text = call("show", "phi4-mini").output
    assert "penstock pull phi4-mini" in text
    assert "about 2.5 GB" in text
    assert "not pulled it" in text
    with pytest.raises(ModelNotFound, match="nonesuch"):
        call("show", "nonesuch")
    with pytest.raises(ModelNotFound, match="not pulled"):
        call("show", "phi4-mini", "--template")


def test_a_removed_model_is_gone(cache: Path) -> None:
    assert "removed" in call("rm", "smollm2").output
    assert not (cache / "models" / ENTRY.key).exists()
    with pytest.raises(ModelNotFound):
        call("rm", "smollm2")


def test_help_groups_every_command() -> None:
    text = call("--help").output
    for heading in ("Talk to a model", "Models on this machine", "Servers", "Planning"):
        assert f"{heading}:" in text


def test_a_change_of_a_served_model_may_take_as_long_as_it_takes_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, float]] = []

    def post(remote: Remote, path: str, body: object, timeout_s: float = TIMEOUT_S) -> dict[str, str]:
        asked.append((path, timeout_s))
        return {"id": "m", "state": "ready"}

    monkeypatch.setattr(Remote, "post", post)
    assert [call(command, "m").output for command in ("wake", "sleep", "stop")] == ["m: ready\n"] * 3
    assert asked == [(f"{path}?model=m", CHANGE_S) for path in ("/wake_up", "/sleep", "/admin/unload")]


def test_figures_of_a_served_model() -> None:
    replica = {"device": "cpu", "weights_bytes": 10**8, "kv_bytes": 2 * 10**9, "kv_use": 0.25, "open": 3}
    scaling = {"replicas": 2, "min_replicas": 1, "max_replicas": 4}
    assert _figures({"deployments": [replica, {**replica, "kv_use": None}], "scaling": scaling}) == [
        "cpu",
        "2 of 1-4",
        "200 MB",
        "4.0 GB",
        "25%",
        "6",
    ]
    assert _figures({"id": "seen with a key that is not an operator's"}) == [""] * 6
    open_circuit = {"state": "ready", "deployments": [{"breaker": {"state": state}} for state in ("closed", "open")]}
    assert (_state(open_circuit), _state({"state": "asleep"})) == ("ready, circuit open", "asleep")
    assert (_until({"expires_s": 90}), _until({"pinned": True}), _until({})) == ("unloaded in 90 s", "stays", "")


def test_ps_has_whole_columns_in_a_narrow_terminal() -> None:
    row = ["smollm2", "ready", "cpu", "1", "97 MB", "300 MB", "25%", "3", "8,192", "stays"]
    assert shown_heads([row], 100) == [*HEADS]
    assert shown_heads([row], 80) == [head for head in HEADS if head != "context"]
    assert shown_heads([["m" * 60, *row[1:]]], 80) == ["model", "state", "in use", "requests"]
    assert shown_heads([], 80) == [head for head in HEADS if head != "context"]


def test_tables_in_a_pipe_are_not_cut() -> None:
    assert "good for trying things out" in call("list", "smollm2").output.splitlines()[1]
