"""The models of a server, without an engine: those that come and go while it runs, and the memory that they hold."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from helpers import tiny_models
from helpers.scripted_upstream import Exchange, ScriptedUpstream, answer, usage
from helpers.server_process import PATIENCE_S
from penstock.deployment.replica_set import ReplicaSet
from penstock.errors import InvalidRequest, InvalidSetting, ModelNotFound, OutOfMemory
from penstock.flow import Request, SamplingParams
from penstock.gateway.route_model import RouteModel
from penstock.gateway.router import Router
from penstock.settings import EngineSettings, ModelEntry, Settings, load
from penstock.startup.find_models import FoundModel, check_names, find_models
from penstock.startup.server_models import ServerModels
from penstock.startup.sharing import Claim, ReplicaShare
from penstock.tokenize.batch import MAX_BATCH, SHORT_TEXT

NOBODY = "http://127.0.0.1:9/v1"


def models_of(folder: Path, *entries: dict[str, Any]) -> ServerModels:
    file = folder / "penstock.toml"
    lines = [f"{name} = {value!r}" for entry in entries for name, value in (("[[models]]", None), *entry.items())]
    file.write_text("\n".join(lines).replace("[[models]] = None", "[[models]]"))
    settings = load({"data_dir": str(folder / "data")}, environ={}, file=file)
    models, found = ServerModels(settings, b"secret"), find_models(settings)
    models.spawn(found)
    models.build(found)
    return models


def names(models: ServerModels) -> list[str]:
    return [model.card.name for model in models.registry]


def test_an_upstream_finishes_its_requests_before_it_is_removed(tmp_path: Path) -> None:
    async def main() -> None:
        goes_on = asyncio.Event()

        async def script(exchange: Exchange) -> None:
            await goes_on.wait()
            await answer(exchange, "Hello", counts=usage(12, 1))

        models = models_of(tmp_path, {"name": "stays", "upstream": NOBODY})
        async with ScriptedUpstream(script).running() as upstream:
            model = await models.add({"name": "far", "upstream": upstream.url}, trusted=False)
            asked = Request(id="r", params=SamplingParams(), messages=[{"role": "user", "content": "Hi"}])
            ticket = await model.submit(await model.prepare([asked]))
            removing = asyncio.create_task(models.remove(model))
            await asyncio.sleep(0.1)
            assert names(models) == ["stays"]
            assert not removing.done()
            goes_on.set()
            await ticket.finished()
            assert ticket.error is None
            assert ticket.active_requests[0].completion().text == "Hello"
            await removing

    asyncio.run(main())


def test_requests_that_are_prepared_while_their_model_is_removed_do_not_hang(tmp_path: Path) -> None:
    tiny = tiny_models.make("llama", tmp_path / "tiny", max_position_embeddings=tiny_models.LONG_CONTEXT)
    texts = ["word " * SHORT_TEXT] * 3 * MAX_BATCH  # several batches for the tokenizer's thread

    async def main() -> None:
        models = models_of(tmp_path, {"name": "far", "upstream": NOBODY})
        entry = {"name": "near", "model": str(tiny), "kv_memory": "10MB", "load": "demand"}
        model = await models.add(entry, trusted=True)
        asked = [Request(id=f"r{place}", params=SamplingParams(), text=text) for place, text in enumerate(texts)]
        preparing = [asyncio.create_task(model.prepare([one])) for one in asked]
        await asyncio.sleep(0)
        await models.remove(model)
        async with asyncio.timeout(PATIENCE_S):
            calls = await asyncio.gather(*preparing)
        assert len(calls) == len(texts)
        for late in (model.prepare(asked[:1]), model.submit(calls[0])):
            with pytest.raises(ModelNotFound, match="the model 'near' has been removed"):
                await late

    asyncio.run(main())


def test_the_last_model_stays_and_a_route_is_none(tmp_path: Path) -> None:
    async def main() -> None:
        models = models_of(tmp_path, {"name": "far", "upstream": NOBODY}, {"name": "near", "upstream": NOBODY})
        models.registry.add(RouteModel("auto", ["far", "near"], "name", models.registry.find, Router()))
        await models.remove(models.registry.find("near"))
        with pytest.raises(InvalidRequest, match="far is the only model"):
            await models.remove(models.registry.find("far"))
        await models.remove(models.registry.find("auto"))
        assert names(models) == ["far"]

    asyncio.run(main())


def test_a_model_that_cannot_be_loaded_is_not_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(replicas: ReplicaSet) -> None:
        raise OutOfMemory("no room")

    monkeypatch.setattr(ReplicaSet, "spawn", spawn)
    tiny = tiny_models.make("llama", tmp_path / "tiny")

    async def main() -> None:
        models = models_of(tmp_path, {"name": "far", "upstream": NOBODY})
        entry = {"name": "near", "model": str(tiny), "kv_memory": "10MB"}
        for _ in range(2):  # the name is free again
            with pytest.raises(OutOfMemory, match="no room"):
                await models.add(entry, trusted=True)
            assert names(models) == ["far"]
        added = await models.add({**entry, "load": "demand"}, trusted=True)
        with pytest.raises(OutOfMemory):
            await models.load(added)  # type: ignore[arg-type]
        assert names(models) == ["far", "near"]
        await models.remove(added)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"name": "far"}, "name", "name: 'far' is taken by the model 'far'"),
        ({"aliases": ["far:latest"]}, "aliases", "aliases: 'far:latest' is taken by the model 'far'"),
        ({"capabilities": ["fly"]}, "capabilities", "new: capabilities: 'fly' is none of chat"),
        ({"api_key_env": "NO_SUCH_KEY"}, "api_key_env", "new: api_key_env: the environment variable NO_SUCH_KEY is"),
        ({"threads": 2}, "threads", "new: threads is a field of a model of this server"),
    ],
)
def test_what_is_wrong_with_an_entry_is_the_client_s_fault(
    tmp_path: Path, fields: dict[str, Any], param: str, message: str
) -> None:
    models = models_of(tmp_path, {"name": "far", "upstream": NOBODY})
    with pytest.raises(InvalidRequest, match=f"^{message}") as caught:
        asyncio.run(models.add({"name": "new", "upstream": NOBODY, **fields}, trusted=True))
    assert caught.value.param == param
    with pytest.raises(ModelNotFound):
        models.registry.find("new")


def test_what_is_wrong_with_a_file_s_entries_is_found_before_any_engine_starts(tmp_path: Path) -> None:
    entry = {"name": "far", "upstream": NOBODY, "api_key_env": "NO_SUCH_KEY"}
    with pytest.raises(InvalidSetting, match=r"^models\[0\] \(far\): api_key_env: the environment"):
        models_of(tmp_path, entry)
    (tmp_path / "penstock.toml").write_text('[[models]]\nname = "near"\nmodel = "/nowhere"')
    with pytest.raises(ModelNotFound, match=r"^models\[0\] \(near\): no model '/nowhere'"):
        check_names(load({}, environ={}, file=tmp_path / "penstock.toml"))


def test_an_engine_that_finds_its_gpus_itself_holds_one_for_each_rank() -> None:
    settings = Settings(engine=EngineSettings(tensor_parallel=2))
    models = ServerModels(settings, b"secret")
    models._claims["tiny"] = Claim("tiny", settings, on_gpu=True)
    found = FoundModel(ModelEntry(name="tiny"))

    def held(*shares: ReplicaShare) -> dict[int, float]:
        return dict(models.resident(found, cast(Any, None), list(shares)).gpu_fractions)

    assert held(ReplicaShare(settings)) == {0: 0.9, 1: 0.9}
    assert held(ReplicaShare(settings, (2, 3))) == {2: 0.9, 3: 0.9}


def test_a_key_of_the_settings_is_for_its_own_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client of a server without keys may add upstreams: they would be sent the key."""
    monkeypatch.setenv("FAR_KEY", "secret")

    async def main() -> None:
        models = models_of(tmp_path, {"name": "far", "upstream": NOBODY, "api_key_env": "FAR_KEY"})
        thief = {"name": "thief", "upstream": "http://127.0.0.1:10/v1", "api_key_env": "FAR_KEY"}
        for entry in (thief, {**thief, "upstream": f"{NOBODY}@thief.example"}):
            with pytest.raises(InvalidRequest, match="api_key_env: only a client with an admin_key"):
                await models.add(entry, trusted=False)
        await models.add({"name": "other", "upstream": NOBODY, "api_key_env": "FAR_KEY"}, trusted=False)
        await models.add(thief, trusted=True)
        assert names(models) == ["far", "other", "thief"]

    asyncio.run(main())
