"""Adapters that come and go while a server runs: where they may come from, what is kept of them, how they leave."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from helpers.adapter_samples import convert_adapter, write_adapter
from helpers.base_model import Base
from helpers.model_specs import small_spec
from penstock.deployment.adapter_model import AdapterModel
from penstock.deployment.adapter_store import AdapterStore
from penstock.deployment.adapters import AdapterManager, adapter_entry
from penstock.deployment.protocol import Call, Price
from penstock.deployment.registry import ModelRegistry
from penstock.errors import (
    AdapterBusy,
    AlreadyExists,
    InvalidRequest,
    ModelInvalid,
    ModelNotFound,
    PenstockError,
    RequestTooLarge,
    WeightsMismatch,
)
from penstock.flow import Request, SamplingParams
from penstock.settings import PriceSettings
from penstock.store.files import ModelFiles

SPEC = small_spec()


class Served(Base):
    """A base whose requests run until the test ends them."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.asked: list[Any] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        replica = SimpleNamespace(source=SimpleNamespace(replica=0), ask=self._ask)
        self.replicas = cast(Any, SimpleNamespace(replicas=[replica], open=0, facts={}))

    async def _ask(self, kind: str, **arguments: Any) -> Any:
        self.calls.append((kind, arguments))
        return [] if kind == "adapters" else None

    async def prepare(self, requests: list[Request]) -> Call:
        self.asked += requests
        return Call(requests)

    async def submit(self, call: Call) -> Any:
        return Running()


class Running:
    done = False


class World:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.base = Served("m")
        self.registry = ModelRegistry([self.base])
        self.store = AdapterStore(folder / "data", options.get("max_bytes", 1 << 20))
        self.manager = AdapterManager(self.registry, self.store, options.get("roots", [folder / "adapters"]))

    def add(self, name: str, source: str, **options: Any) -> AdapterModel:
        return asyncio.run(self.manager.add(adapter_entry(name, source), None, **options))

    def upload(self, name: str, files: dict[str, Path], **options: Any) -> AdapterModel:
        async def story() -> AdapterModel:
            with self.store.new_upload(0) as upload:
                for field, path in files.items():
                    upload.write(field, path.read_bytes())
                return await self.manager.add_upload(
                    upload, name, None, price=options.get("price"), replace=options.get("replace", False)
                )

        return asyncio.run(story())

    def kept(self) -> list[str]:
        """All files of the data folder."""
        return sorted(path.name for path in (self.folder / "data").rglob("*") if path.is_file())


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "adapters").mkdir()
    return World(tmp_path)


def peft_files(folder: Path) -> dict[str, Path]:
    return {"config": folder / "adapter_config.json", "weights": folder / "adapter_model.safetensors"}


def test_an_adapter_comes_from_the_configured_folders(world: World) -> None:
    inside = write_adapter(world.folder / "adapters" / "deep" / "style", SPEC)
    assert world.add("one", str(inside)).adapter.path == str(inside)
    assert world.add("two", "deep/style").adapter.path == str(inside)
    gguf = convert_adapter(inside, world.folder / "adapters" / "style.gguf", SPEC)
    assert world.add("three", "style.gguf").adapter.path == str(gguf)
    assert [model.card.name for model in world.registry] == ["m", "m@one", "m@two", "m@three"]


def test_paths_that_lead_elsewhere_are_refused(world: World) -> None:
    outside = write_adapter(world.folder / "outside", SPEC)
    write_adapter(world.folder / "adapters" / "good", SPEC)
    (world.folder / "adapters" / "link").symlink_to(outside)
    mixed = world.folder / "adapters" / "mixed"
    shutil.copytree(outside, mixed)
    (mixed / "adapter_model.safetensors").unlink()
    (mixed / "adapter_model.safetensors").symlink_to(outside / "adapter_model.safetensors")
    for source in (
        str(outside),
        "../outside",
        "good/../../outside",
        "link",
        "mixed",
        "/etc",
        "..",
        ".",
        "absent",
        "\0",
    ):
        with pytest.raises(InvalidRequest, match="is not in one of the server's adapter_folders") as error:
            world.add("x", source)
        assert error.value.param == "source"
    with pytest.raises(InvalidRequest, match="start it with --adapter-folders"):
        World(world.folder, roots=[]).add("x", str(outside))
    assert len(world.registry) == 1
    assert world.kept() == []


def test_what_does_not_fit_is_not_served(world: World) -> None:
    write_adapter(world.folder / "adapters" / "other", small_spec(hidden_size=32))
    with pytest.raises(WeightsMismatch, match="64 to 64 in tiny"):
        world.add("x", "other")
    write_adapter(world.folder / "adapters" / "large", SPEC, rank=300, modules=("q_proj",))
    with pytest.raises(WeightsMismatch, match="rank 300"):
        world.add("x", "large")
    write_adapter(world.folder / "adapters" / "head", small_spec(vocab_size=99), modules=("lm_head",))
    with pytest.raises(WeightsMismatch, match="head takes 64 inputs to 99 outputs in the adapter"):
        world.add("x", "head")
    corrupt = write_adapter(world.folder / "adapters" / "corrupt", SPEC)
    (corrupt / "adapter_model.safetensors").write_bytes(b"\1" * 100)
    with pytest.raises(ModelInvalid, match="not a valid safetensors file"):
        world.add("x", "corrupt")
    world.base.replicas.facts["adapter_bytes"] = 0  # a GPU's
    with pytest.raises(InvalidRequest, match="runs no adapters"):
        world.add("x", "head")
    assert (len(world.registry), world.kept()) == (1, [])


def test_a_name_is_taken_once_unless_it_is_replaced(world: World) -> None:
    write_adapter(world.folder / "adapters" / "a", SPEC)
    write_adapter(world.folder / "adapters" / "b", SPEC, seed=1)
    first = world.add("style", "a")
    with pytest.raises(AlreadyExists, match="'m@style' is taken") as error:
        world.add("style", "b")
    assert (error.value.status, error.value.param) == (409, "name")
    second = world.add("style", "b", replace=True)
    assert world.registry.find("style") is second
    assert first.removed
    assert not second.removed
    for wrong in ("", "a@b", "a/b", "../x", "a" * 101, "a b"):
        with pytest.raises(InvalidRequest, match="name must have letters"):
            world.add(wrong, "a")


def test_an_upload_is_served_and_comes_back_after_a_restart(world: World) -> None:
    folder = write_adapter(world.folder / "mine", SPEC)
    model = world.upload("style", peft_files(folder), price=PriceSettings(input=2.0))
    assert model.card.price == Price(input=2.0)
    assert world.kept()[:2] == ["adapter_config.json", "adapter_model.safetensors"]
    assert not any((world.folder / "data" / "drafts").iterdir())
    write_adapter(world.folder / "adapters" / "b", SPEC, seed=1)
    world.add("other", "b")

    again = World(world.folder)
    again.manager.restore()
    found = again.registry.find("style")
    assert isinstance(found, AdapterModel)
    assert (found.adapter, found.card.price) == (model.adapter, Price(input=2.0))
    assert again.registry.find("m@other").card.parent == "m"

    asyncio.run(again.manager.remove(found, 1.0))
    last = World(world.folder)
    last.manager.restore()
    assert [one.card.name for one in last.registry] == ["m", "m@other"]
    assert "adapter_model.safetensors" not in world.kept()


def test_what_cannot_come_back_is_left_out_with_a_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_adapter(world.folder / "adapters" / "a", SPEC)
    world.add("style", "a")
    shutil.rmtree(folder)
    again = World(world.folder)
    again.manager.restore()
    assert len(again.registry) == 1
    assert "m@style, which was added before the start, is not back" in caplog.text


def test_a_table_that_was_trained_whole_is_refused_on_every_way(world: World) -> None:
    weights = world.folder / "base.safetensors"
    table = np.ones((SPEC.vocab_size, SPEC.hidden_size), np.float32)
    save_file({"model.embed_tokens.weight": table}, weights)
    world.base.files = ModelFiles(name="m", format="safetensors", weights=(weights,), spec=SPEC)
    folder = write_adapter(world.folder / "adapters" / "style", SPEC)
    name = "base_model.model.model.embed_tokens.weight"

    def keep(table: np.ndarray) -> None:
        save_file(load_file(peft_files(folder)["weights"]) | {name: table}, peft_files(folder)["weights"])

    keep(table)
    world.add("style", "style")
    keep(table + 1)
    with pytest.raises(WeightsMismatch, match=f"its tensor {name} is not the table of m"):
        world.add("other", "style")
    with pytest.raises(WeightsMismatch, match=f"adapter mine does not fit: its tensor {name}"):
        world.upload("mine", peft_files(folder))
    assert [model.card.name for model in world.registry] == ["m", "m@style"]
    again = AdapterManager(registry := ModelRegistry([world.base]), world.store, [world.folder / "adapters"])
    again.restore()
    assert [model.card.name for model in registry] == ["m"]


def test_an_upload_that_is_cut_off_or_wrong_leaves_nothing(world: World) -> None:
    folder = write_adapter(world.folder / "mine", SPEC)

    def cut_off() -> None:
        with world.store.new_upload(0) as upload:
            upload.write("weights", b"half of it")
            raise ConnectionError

    with pytest.raises(ConnectionError):
        cut_off()
    other = write_adapter(world.folder / "other", small_spec(hidden_size=32))
    broken = {**peft_files(folder), "config": folder / "adapter_model.safetensors"}
    wrong: list[tuple[dict[str, Path], type[PenstockError], str]] = [
        ({"weights": folder / "adapter_model.safetensors"}, InvalidRequest, "send config"),
        ({}, InvalidRequest, "send config"),
        (broken, ModelInvalid, "adapter_config.json is not valid JSON"),
        (peft_files(other), WeightsMismatch, "does not fit"),
    ]
    for files, kind, message in wrong:
        with pytest.raises(kind, match=message) as error:
            world.upload("style", files)
        assert str(world.folder) not in error.value.message
    with pytest.raises(RequestTooLarge, match="weights is larger than 10 bytes"):
        World(world.folder, max_bytes=10).upload("style", peft_files(folder))
    with world.store.new_upload(0) as upload, pytest.raises(RequestTooLarge, match="config is larger"):
        upload.write("config", b" " * 2_000_000)
    assert (len(world.registry), world.kept()) == (1, [])
    assert not any((world.folder / "data" / "drafts").iterdir())


def test_requests_name_the_adapter_and_hold_it_until_they_end(world: World) -> None:
    folder = write_adapter(world.folder / "mine", SPEC)
    model = world.upload("style", peft_files(folder))
    request = Request(id="r", params=SamplingParams(), text="hello")

    async def story() -> None:
        ticket: Any = await model.submit(await model.prepare([request]))
        assert world.base.asked[-1].adapter == model.adapter
        late = await model.prepare([request])
        with pytest.raises(AdapterBusy, match=r"1 of it still run after 0\.05 s"):
            await world.manager.remove(model, 0.05)
        assert Path(model.adapter.path).exists()
        for call in (model.prepare([request]), model.submit(late)):
            with pytest.raises(ModelNotFound, match="has been removed"):
                await call
        with pytest.raises(ModelNotFound, match="has no adapter 'style'"):
            world.registry.find("m@style")
        ticket.done = True
        while world.manager._draining:
            await asyncio.sleep(0)
        assert not Path(model.adapter.path).exists()

    asyncio.run(story())
    assert world.base.calls == [("forget_adapter", {"name": "style", "version": model.adapter.version})]
