"""LoRA adapters of a server: model ids of their own, with permissions and prices, that come and go while it runs."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from click.testing import CliRunner
from msgspec import structs

from helpers.adapter_samples import write_adapter
from helpers.server_process import PATIENCE_S, Server, until
from penstock.cli import penstock
from penstock.store.resolve import resolve

ADMIN = "admin-key"
SETTINGS = """
[serve]
api_key = "user-key"
admin_key = "{admin}"
adapter_folders = "{folder}/allowed"
max_adapter = "2MB"

[tenants]
keys = true

[cache]
kv_memory = "50MB"

[[models]]
name = "base"
model = "{tiny}"
price = {{ input = 1.0, output = 2.0 }}
adapters = [
    {{ name = "style", source = "{folder}/style", price = {{ input = 10.0, output = 20.0 }}, aliases = ["fancy"] }},
    "tone={folder}/tone",
]
"""


@pytest.fixture(scope="module")
def folder(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, spec = tmp_path_factory.mktemp("adapters"), resolve(str(tiny)).spec
    for seed, name in enumerate(("style", "tone", "allowed/late", "allowed/other", "mine")):
        write_adapter(folder / name, spec, seed=seed, size=2.0)
    return folder


@pytest.fixture(scope="module")
def server(tiny: Path, folder: Path) -> Iterator[Server]:
    file = folder / "penstock.toml"
    file.write_text(SETTINGS.format(tiny=tiny, folder=folder, admin=ADMIN))
    with Server(f"--config={file}") as server:
        yield server


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {ADMIN}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_S) as client:
        yield client


def names(http: httpx.Client) -> list[str]:
    return [one["id"] for one in http.get("/v1/models").json()["data"]]


def complete(http: httpx.Client, model: str, tokens: int = 8, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": "once", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields}
    return http.post("/v1/completions", json=body)


def error(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    return found


def test_adapters_are_models_with_a_parent(http: httpx.Client) -> None:
    listed = {one["id"]: one for one in http.get("/v1/models").json()["data"]}
    assert list(listed) == ["base", "base@style", "base@tone"]
    style = listed["base@style"]
    assert (style["parent"], style["aliases"], style["state"]) == ("base", ["style", "fancy"], "ready")
    assert (style["price"]["input"], listed["base@tone"]["price"]["input"]) == (10.0, 1.0)
    assert style["max_model_len"] == listed["base"]["max_model_len"]
    assert http.get("/v1/models/fancy").json()["id"] == "base@style"
    tags = {one["model"]: one for one in http.get("/api/tags").json()["models"]}
    assert list(tags) == ["base:latest", "base@style:latest", "base@tone:latest"]
    assert tags["base@style:latest"]["details"]["parent_model"] == "base"
    assert tags["base@style:latest"]["digest"] != tags["base@tone:latest"]["digest"]
    kinds = {one["id"]: one["kind"] for one in http.get("/admin/models").json()["data"]}
    assert kinds == {"base": "local", "base@style": "adapter", "base@tone": "adapter"}
    counted = [http.post("/tokenize", json={"model": name, "prompt": "once"}).json() for name in ("style", "base")]
    assert counted[0] == counted[1]


def test_answers_are_the_adapters_own_and_charged_at_its_price(http: httpx.Client) -> None:
    answers = {name: complete(http, name).json() for name in ("base", "base@style", "base@tone", "fancy")}
    texts = {name: answer["choices"][0]["text"] for name, answer in answers.items()}
    assert len({texts["base"], texts["base@style"], texts["base@tone"]}) == 3
    assert texts["fancy"] == texts["base@style"]
    assert [answer["model"] for answer in answers.values()] == ["base", "base@style", "base@tone", "base@style"]
    costs = {name: answer["usage"]["cost_usd"] for name, answer in answers.items()}
    assert costs["base@style"] == pytest.approx(10 * costs["base"])
    assert costs["base@tone"] == costs["base"]
    usage = http.get("/usage", params={"group_by": "model"}).json()["data"]
    assert {"base", "base@style", "base@tone"} <= {one["model"] for one in usage}
    listed = {one["name"]: one for one in http.get("/admin/adapters").json()["data"]}
    (known,) = listed["style"]["residency"]
    assert (known["state"], known["loads"], known["in_use"]) == ("resident", 1, 0)
    text = http.get("/metrics").text
    assert 'penstock_requests_total{finish="length",model="base@style",replica="0"} 2.0' in text
    shown = http.get("/observe/requests", params={"limit": 4}).json()["requests"]
    assert {one["model"] for one in shown} >= {"base", "base@style", "base@tone"}
    rows = http.get("/observe/steps", params={"model": "base"}).json()["sequences"].values()
    assert {one["adapter"] for one in rows} >= {None, "style", "tone"}


def test_echo_and_choices_are_the_adapters(http: httpx.Client) -> None:
    """The prompt's logprobs are those that the adapter gives, as the answers' are."""
    fields = {"echo": True, "logprobs": 1, "n": 2}
    answers = {name: complete(http, name, **fields).json()["choices"] for name in ("base", "base@style")}
    for choices in answers.values():
        assert [choice["text"].startswith("once") for choice in choices] == [True, True]
        assert choices[0]["text"] == choices[1]["text"]  # greedy
    values = {name: choices[0]["logprobs"]["token_logprobs"] for name, choices in answers.items()}
    echoed = len(values["base"]) - 8
    assert echoed > 1
    assert values["base"][1:echoed] != values["base@style"][1:echoed]


def test_unloading_waits_for_running_requests(http: httpx.Client) -> None:
    load = {"lora_name": "late", "lora_path": "late"}
    assert http.post("/v1/load_lora_adapter", json=load).status_code == 200
    body = {"model": "late", "prompt": "once", "max_tokens": 1500, "stream": True, "ignore_eos": True}
    with http.stream("POST", "/v1/completions", json=body) as running:
        lines = running.iter_lines()
        assert next(lines).startswith("data:")
        busy = http.delete("/admin/adapters/late", params={"timeout_s": 0})
        assert (busy.status_code, error(busy)["code"]) == (504, "adapter_busy")
        assert complete(http, "base@late").status_code == 404
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert http.post("/v1/load_lora_adapter", json=load).status_code == 200
    assert complete(http, "late").status_code == 200
    assert http.delete("/admin/adapters/late").status_code == 200


def test_files_that_are_deleted_or_change_are_an_error_of_their_requests(
    http: httpx.Client, server: Server, folder: Path, tiny: Path
) -> None:
    """Sequences that run with an adapter go on: it is in memory."""
    spec = resolve(str(tiny)).spec
    for name, seed in (("gone", 7), ("changed", 8)):
        write_adapter(folder / "allowed" / name, spec, seed=seed)
        assert http.post("/admin/adapters", json={"name": name, "source": name}).status_code == 200
    (folder / "allowed" / "gone" / "adapter_model.safetensors").unlink()
    write_adapter(folder / "allowed" / "changed", spec, seed=9)
    for name, message in (("gone", "adapter_model.safetensors"), ("changed", "has changed on disk")):
        answer = complete(http, name)
        assert answer.status_code in (404, 422), answer.text
        assert message in error(answer)["message"]
        assert str(folder) not in answer.text
        listed = CliRunner().invoke(penstock, ["adapters", "list", "--server", server.url, "--api-key", ADMIN]).output
        assert " ".join(f"base@{name}: {error(answer)['message']}".split()) in " ".join(listed.split())
        assert http.delete(f"/admin/adapters/{name}").status_code == 200
    assert complete(http, "style").status_code == 200


def test_an_unknown_adapter_is_a_404_that_lists_those_there_are(http: httpx.Client) -> None:
    answer = complete(http, "base@none")
    assert answer.status_code == 404
    assert error(answer)["code"] == "model_not_found"
    assert "has no adapter 'none'; it has 'base@style', 'base@tone'" in error(answer)["message"]


def test_a_key_sees_and_uses_only_its_adapters(http: httpx.Client, server: Server) -> None:
    made = http.post("/admin/keys", json={"tenant": "t", "models": ["base@tone"]}).json()
    with openai.OpenAI(base_url=server.api, api_key=made["key"], max_retries=0) as own:
        assert [model.id for model in own.models.list()] == ["base@tone"]
        assert own.completions.create(model="tone", prompt="once", max_tokens=1).model == "base@tone"
        for hidden in ("base", "base@style", "style"):
            with pytest.raises(openai.NotFoundError):
                own.completions.create(model=hidden, prompt="once", max_tokens=1)
    headers = {"authorization": f"Bearer {made['key']}"}
    for method, path in (("GET", "/admin/adapters"), ("POST", "/admin/adapters"), ("POST", "/v1/load_lora_adapter")):
        assert http.request(method, path, headers=headers, json={}).status_code == 403


def test_adapters_are_loaded_and_unloaded_as_in_vllm(http: httpx.Client, folder: Path) -> None:
    load = {"lora_name": "late", "lora_path": str(folder / "allowed" / "late")}
    answer = http.post("/v1/load_lora_adapter", json=load)
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'late' added successfully.")
    assert names(http)[-1] == "base@late"
    again = http.post("/v1/load_lora_adapter", json=load)
    assert again.status_code == 400
    assert "'late' has already been loaded" in error(again)["message"]
    assert http.post("/v1/load_lora_adapter", json={**load, "load_inplace": True}).status_code == 200
    answer = http.post("/v1/unload_lora_adapter", json={"lora_name": "late"})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'late' removed successfully.")
    for name, status in (("late", 404), ("base", 400)):
        answer = http.post("/v1/unload_lora_adapter", json={"lora_name": name})
        assert (answer.status_code, error(answer)["param"]) == (status, "lora_name")
    for wrong, status, param in (
        ({**load, "lora_path": str(folder / "style")}, 400, "source"),
        ({**load, "lora_path": "../style"}, 400, "source"),
        ({**load, "lora_name": "a/b"}, 400, "lora_name"),
        ({"lora_name": "x"}, 400, None),
        ({**load, "lora_pfad": "x"}, 400, None),
        ({**load, "base_model_name": "none"}, 404, "model"),
        ({**load, "lora_name": "base"}, 400, "lora_name"),  # vLLM's clients would get the base by this name
    ):
        answer = http.post("/v1/load_lora_adapter", json=wrong)
        assert (answer.status_code, error(answer)["param"]) == (status, param), answer.text
    assert names(http) == ["base", "base@style", "base@tone"]


def upload(http: httpx.Client, folder: Path, **fields: str) -> httpx.Response:
    with (
        (folder / "adapter_config.json").open("rb") as config,
        (folder / "adapter_model.safetensors").open("rb") as tensors,
    ):
        return http.post("/admin/adapters/upload", data=fields, files={"config": config, "weights": tensors})


def test_adapters_are_uploaded(http: httpx.Client, folder: Path, server: Server, tiny: Path, tmp_path: Path) -> None:
    answer = upload(http, folder / "mine", name="mine", price='{"input": 3}')
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert (made["id"], made["rank"], made["price"]["input"], made["residency"]) == ("base@mine", 4, 3.0, [])
    taken = upload(http, folder / "style", name="mine")
    assert (taken.status_code, error(taken)["code"]) == (409, "already_exists")
    replaced = upload(http, folder / "style", name="mine", replace="true").json()
    assert replaced["version"] != made["version"]
    kept = Path(server.data_folder.name) / "adapters"
    assert len(
        until(lambda: found if len(found := list(kept.rglob("*.safetensors"))) == 1 else None, "the old is gone")
    )
    corrupt = write_adapter(tmp_path / "corrupt", resolve(str(tiny)).spec)
    (corrupt / "adapter_model.safetensors").write_bytes(b"\0" * 2000)
    wrong = upload(http, corrupt, name="x")
    assert (wrong.status_code, error(wrong)["code"], error(wrong)["param"]) == (422, "model_invalid", "adapter")
    for fields, param in (
        ({}, "name"),
        ({"name": "x", "colour": "red"}, "colour"),
        ({"name": "x", "price": "1"}, "price"),
        ({"name": "x", "price": '{"input": -1}'}, "price"),
    ):
        answer = upload(http, folder / "mine", **fields)
        assert (answer.status_code, error(answer)["param"]) == (400, param)
    assert error(answer)["message"] == "price.input must be a number >= 0.0"
    other = write_adapter(tmp_path / "other", structs.replace(resolve(str(tiny)).spec, hidden_size=96), rank=2)
    assert error(upload(http, other, name="x"))["message"].startswith("adapter x does not fit: q of layer 0 takes 96")
    large = tmp_path / "large"
    large.mkdir()
    (large / "adapter_config.json").write_text("{}")
    (large / "adapter_model.safetensors").write_bytes(b"\0" * 4_000_000)
    assert upload(http, large, name="x").status_code == 413
    removed = http.delete("/admin/adapters/base@mine")
    assert (removed.status_code, removed.json()) == (200, {"id": "base@mine", "deleted": True})
    assert http.delete("/admin/adapters/base@mine").status_code == 404
    assert http.delete("/admin/adapters/base").status_code == 400
    assert [path for path in kept.rglob("*") if path.is_file()] == []


def test_an_upload_that_is_cut_off_leaves_nothing(http: httpx.Client, server: Server) -> None:
    drafts = Path(server.data_folder.name) / "adapters" / "drafts"
    head = (
        "POST /admin/adapters/upload HTTP/1.1\r\nhost: localhost\r\n"
        f"authorization: Bearer {ADMIN}\r\ncontent-length: 500000\r\n"
        "content-type: multipart/form-data; boundary=edge\r\n\r\n"
        '--edge\r\ncontent-disposition: form-data; name="weights"; filename="w"\r\n\r\n'
    )
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), PATIENCE_S) as connection:
        connection.sendall(head.encode() + b"\0" * 300_000)
        until(lambda: drafts.exists() and any(drafts.rglob("adapter_model.safetensors")), "the upload has begun")
    until(lambda: not any(drafts.iterdir()), "the draft is gone")
    assert names(http) == ["base", "base@style", "base@tone"]


def test_adapters_from_the_command_line(http: httpx.Client, server: Server, folder: Path) -> None:
    def run(*arguments: str) -> str:
        answer = CliRunner().invoke(
            penstock, ["adapters", *arguments, "--server", server.url, "--api-key", ADMIN], catch_exceptions=False
        )
        assert answer.exit_code == 0, answer.output
        return answer.output

    assert "base@late: rank 4" in run("add", "late", "late")
    assert "base@sent: rank 4" in run("add", "sent", str(folder / "mine"), "--upload")
    listed = json.loads(run("list", "--json"))
    assert [one["name"] for one in listed] == ["style", "tone", "late", "sent"]
    assert "base@sent" in run("list")
    assert run("remove", "late", "base@sent") == "base@late: removed\nbase@sent: removed\n"
    assert names(http) == ["base", "base@style", "base@tone"]


def test_added_adapters_survive_a_restart(tiny: Path, folder: Path, tmp_path: Path) -> None:
    options = {"kv_memory": "50MB", "data_dir": str(tmp_path), "adapter_folders": str(folder / "allowed")}
    with Server(tiny, **options) as server, httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
        assert upload(http, folder / "mine", name="mine").status_code == 200
        assert http.post("/admin/adapters", json={"name": "late", "source": "late"}).status_code == 200
        before = {one["id"]: one["version"] for one in http.get("/admin/adapters").json()["data"]}
    with Server(tiny, **options) as server, httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
        assert {one["id"]: one["version"] for one in http.get("/admin/adapters").json()["data"]} == before
        assert len(before) == 2
