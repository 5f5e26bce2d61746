from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from helpers import tiny_models
from helpers.store_samples import LLAMA, TOKENIZER, write_gguf
from penstock import composition, settings
from penstock.deployment.protocol import ModelCard
from penstock.deployment.registry import ModelRegistry
from penstock.deployment.replica_set import ReplicaSet
from penstock.deployment.upstream_endpoint import Endpoint
from penstock.engine import process
from penstock.errors import ContextOverflow, ModelNotFound
from penstock.flow import Request, SamplingParams
from penstock.flow.identity import SequenceNumbers
from penstock.flow.prefix import SECRET_BYTES, draw_secret
from penstock.settings import ModelEntry
from penstock.startup.sharing import ReplicaShare
from penstock.store.disk import CACHE_VARIABLE


def test_recommendations_out_of_bounds_are_ignored_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would fail every request that does not say otherwise."""
    recommended = {"temp": -1.0, "top_k": 2.5, "top_p": 0.5, "min_p": 1.5, "penalty_repeat": 0.0}
    metadata = {f"general.sampling.{name}": value for name, value in recommended.items()}
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "x.gguf", metadata=LLAMA | TOKENIZER | metadata)

    found = composition.model(settings.load({"model": str(path)}, environ={}))

    assert found.sampling == {"top_p": 0.5}
    SamplingParams(**found.sampling)  # type: ignore[arg-type]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4
    assert all(text.startswith("ignored a recommended sampling parameter of x: ") for text in told)
    for words in ("temperature must be in [0.0, 100.0], got -1.0", "top_k must be", "min_p", "repetition_penalty"):
        assert sum(words in text for text in told) == 1


def test_the_context_is_what_the_engine_found_room_for(tmp_path: Path) -> None:
    chosen = settings.load({"model": str(tiny_models.make("llama", tmp_path / "tiny"))}, environ={})
    files = composition.model(chosen)
    replicas = ReplicaSet(cast(Any, None))  # their engines are yet to come
    model = composition.local_model(chosen, files, replicas, SequenceNumbers())
    models = ModelRegistry([model])
    app, service, _ = composition.server(chosen, models, composition.gateway(chosen, models, b"secret"))
    with closing(service), TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/v1/models").json()["data"][0]["max_model_len"] == files.spec.context
        (listener,) = replicas._ready_listeners
        listener({"context": 48})
        assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 48
    with pytest.raises(ContextOverflow, match="the context holds 48"):
        model.pipeline.accept(Request(id="a", params=SamplingParams(max_tokens=8), tokens=[5] * 41))


def test_a_tokenizer_of_an_upstream_that_is_not_there_is_named() -> None:
    endpoint = Endpoint(name="far", url="http://h/v1", model="m")
    with pytest.raises(ModelNotFound, match=r"^far: tokenizer: no model '/nowhere'") as caught:
        composition.upstream_model(endpoint, ModelCard(name="far"), SequenceNumbers(), "/nowhere")
    assert caught.value.param == "tokenizer"


def test_all_engines_of_a_server_get_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the keys of prefixes are the same before and after a restart, and on no other server."""
    given: list[bytes] = []
    monkeypatch.setattr(process, "ProcessEngine", lambda _, secret, *_rest, **_named: given.append(secret))
    secret = draw_secret()
    assert len(secret) == SECRET_BYTES
    replicas = composition.replica_set([ReplicaShare(settings.load(environ={}))], ModelEntry(name="m"), secret)
    replicas.spawn()
    replicas.replicas[0]._spawn()  # as it does when the first has died
    assert given == [secret, secret]
