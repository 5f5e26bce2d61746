import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from helpers import tiny_models
from penstock.cli.budget import budget
from penstock.cli.plan import plan
from penstock.errors import ContextOverflow, InvalidRequest, InvalidSetting, ModelNotFound, PenstockError

LLAMA = "layers=32,hidden=4096,intermediate=14336,heads=32,kv_heads=8,vocab=128256,context=8192"


def run(command: object, *arguments: str) -> Result:
    result = CliRunner().invoke(command, arguments, env={"COLUMNS": "100"})  # type: ignore[arg-type]
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_plan_for_people() -> None:
    options = ("--hardware", "h100-sxm", "--tensor-parallel", "4", "--rate", "50", "--hour-price", "2.5")
    shown = run(plan, "llama-3.1-70b", *options).stdout
    assert "llama-3.1-70b on 4 × NVIDIA H100 SXM 80 GB" in shown
    for expected in ("70.6 G", "35.3 GB", "328 kB", "bandwidth", "throughput", "for 50 requests/s", "per M"):
        assert expected in shown


def test_a_plan_for_programs() -> None:
    made = json.loads(run(plan, "llama-3.1-8b", "--hardware", "l4", "--weights", "q4_k_m", "--json").stdout)
    assert made["model"]["parameters"] == 8_030_261_248
    assert made["hardware"]["name"] == "l4"
    assert made["memory"]["fits"] is True
    assert made["replicas"] is None


def test_numbers_instead_of_names() -> None:
    numbers = json.loads(run(plan, LLAMA, "--hardware", "memory=80GB,bandwidth=2TB/s,flops=312T", "--json").stdout)
    assert numbers["model"]["parameters"] == 8_030_261_248
    assert numbers["hardware"]["bandwidth_bytes_s"] == 2e12
    assert numbers["hardware"]["flops"] == 312e12
    assert numbers["kv"]["bytes_per_token"] == 131_072


def test_devices_side_by_side() -> None:
    options = (
        "--hardware",
        "h100-sxm@2.5",
        "--hardware",
        "t4",
        "--hardware",
        "memory=9GB,bandwidth=1TB,flops=9T,fp8=18T",
    )
    shown = run(plan, "llama-3.1-8b", *options).stdout
    rows = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "yes" in rows["h100-sxm"]
    assert "2.5" in rows["h100-sxm"]
    assert "short" in rows["t4"]
    assert "custom" in rows
    first, second, _ = json.loads(run(plan, "llama-3.1-8b", *options, "--json").stdout)
    assert (first["question"]["hour_price"], second["cost"]) == (2.5, None)


def test_a_model_on_disk_and_the_machine_itself(tmp_path: Path) -> None:
    folder = tiny_models.make("gemma3", tmp_path / "tiny-gemma")
    made = json.loads(run(plan, str(folder), "--prompt-tokens", "100", "--json").stdout)
    assert made["model"]["name"] == "tiny-gemma"
    assert made["kv"]["bytes_per_token_late"] == made["kv"]["bytes_per_token"] / 4
    assert made["hardware"]["memory_bytes"] > 0


def test_a_model_that_does_not_fit() -> None:
    shown = run(plan, "llama-3.1-405b", "--hardware", "t4").stdout
    assert " short" in shown


def test_a_preset_that_is_misspelt() -> None:
    with pytest.raises(ModelNotFound, match=r"did you mean llama-3.1-70b.*--list has the presets"):
        run(plan, "Llama3.1-70B", "--hardware", "h100-sxm")


def test_presets_are_listed() -> None:
    shown = run(plan, "--list").stdout
    assert "qwen3-0.6b" in shown
    assert "rtx-4090" in shown


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        (("llama-3.1-8b", "--hardware", "h100"), "hardware"),
        (("llama-3.1-8b", "--hardware", "memory=80GB"), "hardware.bandwidth_bytes_s"),
        (("llama-3.1-8b", "--hardware", "memory=much,bandwidth=1TB,flops=1T"), "hardware.memory"),
        (("llama-3.1-8b", "--hardware", "memory=80GB,colour=red"), "hardware"),
        (("layers=3",), "model.hidden"),
        (("layers=3,hidden",), "model"),
        (("layers=many,hidden=1",), "model.layers"),
        ((f"{LLAMA},layers=33",), "model"),
        (("llama-3.1-8b", "--hardware", "memory=80GB,bandwidth=1TB,flops=1T,memory=90GB"), "hardware"),
        (("llama-3.1-8b", "--hardware", "t4", "--prompt-tokens", "0"), "prompt_tokens"),
        (("no-such-model",), "model"),
    ],
)
def test_what_is_wrong_is_named(arguments: tuple[str, ...], param: str) -> None:
    with pytest.raises(PenstockError) as caught:
        run(plan, *arguments)
    assert caught.value.param == param


def test_a_budget(tmp_path: Path) -> None:
    folder = tiny_models.make("llama", tmp_path / "tiny")
    manual = tmp_path / "manual.txt"
    manual.write_text("open the valve")
    history = json.dumps([{"role": "user", "content": "xyz"}, {"role": "assistant", "content": "xy"}])
    options = ("--system", "abc", "--history", history, "--document", f"@{manual}", "--user", "why?", "--output", "50")
    made = json.loads(run(budget, str(folder), *options, "--json").stdout)
    parts = {part["name"]: part for part in made["parts"]}
    assert parts["system"]["tokens"] == 3
    assert parts["history"]["each"] == [3, 2]
    assert len(parts["documents"]["each"]) == 1
    assert sum(part["tokens"] for part in made["parts"]) == made["used_tokens"]
    assert made["context"] == 512
    over = run(budget, str(folder), *options, "--context", "60")
    assert over.exit_code == 1
    assert "too many" in over.stdout


def test_a_budget_shows_what_assembly_keeps(tmp_path: Path) -> None:
    folder = tiny_models.make("llama", tmp_path / "tiny")
    texts = ("--document", "Pumps move water.", "--document", "Valves close.", "--user", "What do valves do?")
    assembly = ("--assembly", '{"budget": {"documents": 100}}', "--output", "20")
    made = json.loads(run(budget, str(folder), *texts, *assembly, "--json").stdout)["assembled"]
    documents = [(part["id"], part["action"]) for part in made["parts"] if part["kind"] == "document"]
    assert documents == [("2", "kept"), ("1", "dropped")]
    shown = run(budget, str(folder), *texts, *assembly, "--context", "300")
    assert shown.exit_code == 0  # assembly makes it fit
    assert "document 1" in shown.stdout
    for wrong in ("{", "[]", "null", '{"rank": "embedding"}', '{"ranking": "bm25"}'):
        with pytest.raises(InvalidRequest) as caught:
            run(budget, str(folder), *texts, "--assembly", wrong)
        assert (caught.value.param or "").startswith("assembly")


@pytest.mark.parametrize(
    ("assembly", "param"),
    [
        ('{"budget": {"total": 150}}', "reserved_output"),
        ('{"budget": {"total": 300, "output": 290}}', "user"),
        ('{"budget": {"user": 1}}', "assembly.budget.user"),
    ],
)
def test_what_does_not_fit_has_the_planner_s_names(tmp_path: Path, assembly: str, param: str) -> None:
    folder = str(tiny_models.make("llama", tmp_path / "tiny"))
    with pytest.raises(ContextOverflow) as caught:
        run(budget, folder, "--user", "What do valves do?", "--assembly", assembly)
    assert caught.value.param == param
    assert "max_tokens" not in caught.value.message
    assert "context." not in caught.value.message


def test_the_history_of_a_budget_is_what_the_api_takes(tmp_path: Path) -> None:
    folder = str(tiny_models.make("llama", tmp_path / "tiny"))
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
    history = [
        {"role": "user", "content": [{"type": "text", "text": "xyz"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    made = json.loads(run(budget, folder, "--history", json.dumps(history), "--user", "a", "--json").stdout)
    asked, called = next(part["each"] for part in made["parts"] if part["name"] == "history")
    assert asked == 3
    assert called > len("look")  # the model's tokens are letters
    for wrong, param in (("null", "history"), ('[{"role": "user"}]', "history[0].content"), ("[]", "history")):
        with pytest.raises(InvalidRequest) as caught:
            run(budget, folder, "--history", wrong, "--user", "a")
        assert caught.value.param == param


def test_a_budget_of_nothing_or_of_no_file(tmp_path: Path) -> None:
    folder = str(tiny_models.make("llama", tmp_path / "tiny"))
    for options, param in (((), "user"), (("--user", "@nowhere"), "user"), (("--history", "{"), "history")):
        with pytest.raises(InvalidRequest) as caught:
            run(budget, folder, *options)
        assert caught.value.param == param


def test_an_address_that_is_none() -> None:
    with pytest.raises(InvalidSetting) as caught:
        run(plan, "--server", "ftp://somewhere")
    assert caught.value.param == "url"
