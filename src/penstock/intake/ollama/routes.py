"""The routes of Ollama's API. Errors have its body on all of them (`problems`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.responses import PlainTextResponse, StreamingResponse

from penstock import flow
from penstock.errors import EngineDied, InvalidRequest, NotFound
from penstock.intake.body import read
from penstock.intake.described import documented
from penstock.intake.desk import Desk
from penstock.intake.failure import problem
from penstock.intake.ollama import embed as embedding
from penstock.intake.ollama import requests
from penstock.intake.ollama.answers import (
    OllamaChatAnswer,
    OllamaEmbedding,
    OllamaEmbeddingList,
    OllamaGenerateAnswer,
    OllamaModelInfo,
    OllamaModelList,
    OllamaRunningList,
    OllamaStatus,
    OllamaVersion,
)
from penstock.intake.ollama.keep_alive import UNLOAD_WARNING, asks_to_unload
from penstock.intake.ollama.models import API_LEVEL, ServedModel, check_served
from penstock.intake.ollama.problems import OllamaErrorBody
from penstock.intake.ollama.pull import Pulls
from penstock.intake.ollama.schemas import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaGeneration,
    OllamaPullRequest,
    OllamaShowRequest,
)
from penstock.intake.ollama.writer import ChatLineWriter, GenerateLineWriter, LineWriter, nanoseconds
from penstock.intake.problems import called
from penstock.intake.respond import EventStream, Whole
from penstock.intake.visit import Visit
from penstock.intake.warnings import HEADER
from penstock.pipeline import Flight

Asked = TypeVar("Asked", bound=OllamaGeneration)

NDJSON = "application/x-ndjson"
RUNNING = "Ollama is running"  # clients look for these very words
_documented = partial(documented, error=OllamaErrorBody)


def add(app: FastAPI, desk: Desk) -> None:
    served = ServedModel(desk.files, desk.pipeline.context, desk.pipeline.dialect, desk.created)
    _add_generation(app, desk)
    _add_embeddings(app, desk)
    _add_models(app, desk, served)
    _add_pull(app, Pulls(served, lambda: desk.closing))
    _add_refusals(app)


def running() -> Response:
    """What GET / is to clients that are no browsers."""
    return PlainTextResponse(RUNNING, headers={"vary": "accept"})


def _add_generation(app: FastAPI, desk: Desk) -> None:
    async def answered(
        request: Request,
        schema: type[Asked],
        writer: type[LineWriter],
        to_request: Callable[..., flow.Request],
        names: dict[str, str],
        is_empty: Callable[[Asked], bool],
    ) -> Response:
        with Visit(request.scope, "ollama", desk.emit) as visit:
            body = await read(schema, request, any_type=True)
            visit.parsed(stream=body.streamed)
            check_served(body.model, desk.files)
            write = writer(
                model=body.model,
                accepted=request.scope["state"]["accepted"],
                vocabulary=desk.tokenizer,
            )
            if is_empty(body):
                answer = _loaded(desk, write, body)
                visit.answered()
                return answer
            with called(names):
                asked = to_request(
                    body,
                    request_id=visit.name,
                    recommended=desk.files.sampling,
                    context=desk.pipeline.context,
                    dialect=desk.pipeline.dialect,
                )
                visit.validated([asked])
                ticket = await desk.submit([asked], visit.tenant)
            if body.streamed:
                return EventStream(desk, ticket, write, content_type=NDJSON)
            return Whole(desk, ticket, lambda flights: write.whole([flight.completion() for flight in flights]))

    @app.post("/api/chat", **_documented(OllamaChatRequest, OllamaChatAnswer, lines=OllamaChatAnswer))
    async def ollama_chat(request: Request) -> Response:
        """Answer a conversation, in Ollama's way."""
        return await answered(
            request, OllamaChatRequest, ChatLineWriter, requests.chat_request, requests.NAMES,
            lambda body: not body.messages,
        )  # fmt: skip

    @app.post("/api/generate", **_documented(OllamaGenerateRequest, OllamaGenerateAnswer, lines=OllamaGenerateAnswer))
    async def ollama_generate(request: Request) -> Response:
        """Answer a prompt, in Ollama's way."""
        return await answered(
            request, OllamaGenerateRequest, GenerateLineWriter, requests.generate_request, requests.GENERATE_NAMES,
            lambda body: not body.prompt,
        )  # fmt: skip


def _loaded(desk: Desk, write: LineWriter, body: OllamaGeneration) -> Response:
    """To a client that wants the model loaded, or unloaded. It is the last line of a stream, too."""
    if not desk.ready:
        raise EngineDied("the model is not loaded: the engine is starting, or the server is shutting down")
    headers = {HEADER: UNLOAD_WARNING} if asks_to_unload(body.keep_alive) else {}
    kind = NDJSON if body.streamed else "application/json"
    return Response(write.loaded() + (b"\n" if body.streamed else b""), 200, headers, kind)


def _add_embeddings(app: FastAPI, desk: Desk) -> None:
    async def embedded(
        request: Request,
        schema: type[OllamaEmbedRequest] | type[OllamaEmbeddingsRequest],
        write: Callable[[Any, Sequence[bytes], int, float], bytes],
        names: dict[str, str],
    ) -> Response:
        """`write` is given the body, the vectors, their tokens, and when the request came."""

        def finish(flights: Sequence[Flight]) -> bytes:
            count = sum(len(flight.submits[0].tokens) for flight in flights)
            return write(body, [flight.embedding() for flight in flights], count, request.scope["state"]["accepted"])

        with Visit(request.scope, "embedding", desk.emit) as visit:
            body = await read(schema, request, any_type=True)
            visit.parsed()
            check_served(body.model, desk.files)
            if not embedding.texts_of(body):
                visit.answered()
                return _json(write(body, [], 0, request.scope["state"]["accepted"]))
            context = desk.pipeline.context
            with called(names):
                asked = embedding.embed_requests(
                    body, request_id=visit.name, context=context, hidden_size=desk.files.spec.hidden_size
                )
                visit.validated(asked)
                if embedding.may_be_cut(body, context):
                    asked = await asyncio.to_thread(embedding.cut, asked, desk.tokenizer, context)
                return Whole(desk, await desk.submit(asked, visit.tenant), finish)

    def several(body: Any, vectors: Sequence[bytes], count: int, accepted: float) -> bytes:
        spent = nanoseconds(time.monotonic() - accepted)
        return embedding.whole(body, vectors, prompt_tokens=count, total_duration=spent)

    @app.post("/api/embed", **_documented(OllamaEmbedRequest, OllamaEmbeddingList, computed=True))
    async def ollama_embed(request: Request) -> Response:
        """Turn one or several texts into vectors of unit length, in Ollama's way."""
        return await embedded(request, OllamaEmbedRequest, several, {})

    @app.post("/api/embeddings", **_documented(OllamaEmbeddingsRequest, OllamaEmbedding, computed=True))
    async def ollama_embeddings(request: Request) -> Response:
        """Turn a text into a vector: the older form of `/api/embed`."""
        return await embedded(
            request, OllamaEmbeddingsRequest, lambda _, vectors, *__: embedding.one(vectors),
            embedding.EMBEDDINGS_NAMES,
        )  # fmt: skip


def _add_models(app: FastAPI, desk: Desk, served: ServedModel) -> None:
    @app.get("/api/tags", **_documented(None, OllamaModelList, missing=None))
    async def ollama_tags() -> Response:
        """The models of this server, in Ollama's way."""
        return _json(served.listed())

    @app.get("/api/ps", **_documented(None, OllamaRunningList, missing=None))
    async def ollama_ps() -> Response:
        """The models that are loaded."""
        return _json(served.running(desk.replica.facts if desk.ready else {}))

    @app.post("/api/show", **_documented(OllamaShowRequest, OllamaModelInfo))
    async def ollama_show(request: Request) -> Response:
        """What a model is: its shape, its chat template, what it can do."""
        body = await read(OllamaShowRequest, request, any_type=True)
        check_served(body.asked, desk.files)
        return _json(served.shown())

    @app.get("/api/version", **_documented(None, OllamaVersion, missing=None))
    async def ollama_version() -> Response:
        """The version of Ollama whose API this is. `GET /version` has the server's own."""
        return _json(msgspec.json.encode(OllamaVersion(version=API_LEVEL)))


def _add_pull(app: FastAPI, pulls: Pulls) -> None:
    @app.post("/api/pull", **_documented(OllamaPullRequest, OllamaStatus, lines=OllamaStatus))
    async def ollama_pull(request: Request) -> Response:
        """Fetch a model of the catalogue. It is not served by that."""
        body = await read(OllamaPullRequest, request, any_type=True)
        pulls.find(body.asked)
        if body.stream is not False:
            return StreamingResponse(lines(body.asked, request), media_type=NDJSON)
        last = b""
        async for line in pulls.lines(body.asked):
            last = line
            if await request.is_disconnected():
                break
        return _json(last)

    async def lines(name: str, request: Request) -> AsyncIterator[bytes]:
        try:
            async for line in pulls.lines(name):
                yield line
        except Exception as error:
            yield problem(error, request.scope).body + b"\n"


def _add_refusals(app: FastAPI) -> None:
    """What Ollama does with models of its own. They are not in /openapi.json: nothing can come of them."""

    def refuse(what: str) -> Callable[[], Any]:
        async def refused() -> Response:
            raise InvalidRequest(f"{what} is not supported: this server serves the model that it was started with")

        return refused

    for method, path, what in (
        ("POST", "/api/create", "creating a model"),
        ("POST", "/api/copy", "copying a model"),
        ("DELETE", "/api/delete", "deleting a model"),
        ("POST", "/api/push", "pushing a model"),
        ("POST", "/api/blobs/{digest}", "uploading a blob"),
    ):
        app.add_api_route(path, refuse(what), methods=[method], include_in_schema=False)

    @app.get("/api/blobs/{digest}", include_in_schema=False)  # asked for by HEAD
    async def blob(digest: str) -> Response:
        raise NotFound("there are no blobs here")


def _json(data: bytes) -> Response:
    return Response(data, 200, media_type="application/json")
