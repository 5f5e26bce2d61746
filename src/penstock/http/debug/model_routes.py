"""Inside the model: what it computes for one short prompt, layer by layer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.deployment.replica import Replica
from penstock.errors import InvalidRequest, PenstockError, QueueFull
from penstock.flow import SamplingParams
from penstock.flow.protocols import Vocabulary
from penstock.gateway.keys.identity import Scope
from penstock.http.debug import route_docs
from penstock.http.debug.queries import ask_engine, find_replica
from penstock.http.debug.sampling_lab import ModelTraceRequest
from penstock.http.json_response import encode_response
from penstock.http.middleware.tenants import identity_of
from penstock.http.parse.body import read_body
from penstock.http.routing import App
from penstock.http.service import Service

MAX_TOKENS = 64  # as in forward.model_trace
POLL_S = 0.03
PATIENCE_S = 15.0  # behind the traces of others


def add(app: App, service: Service) -> None:
    @app.requiring(Scope.OBSERVE).post("/observe/model", **route_docs.MODEL_TRACE.docs)
    async def trace(request: Request) -> Response:
        """Residual stream, attention and logits of every layer, for one short prompt."""
        route_docs.MODEL_TRACE.read_query(request)
        body = await read_body(ModelTraceRequest, request)
        model = service.models_of(identity_of(request.scope)).find_local(body.model)
        if model.base is not model:
            raise InvalidRequest(
                f"the inside of {model.base.name} can be traced, that of its adapter cannot", param="model"
            )
        tokens = await asyncio.to_thread(model.prompt_tokens, body.to_request("", SamplingParams()))
        spec = model.files.spec
        most = min(MAX_TOKENS, model.pipeline.context)
        layer = body.layer or 0
        position = len(tokens) - 1 if body.position is None else body.position
        if not 0 < len(tokens) <= most:
            raise InvalidRequest(f"the prompt has {len(tokens)} tokens: give 1 to {most}", param="prompt")
        if layer >= spec.num_layers:
            raise InvalidRequest(f"layer must be below {spec.num_layers}, got {layer}", param="layer")
        if position >= len(tokens):
            raise InvalidRequest(f"position must be below {len(tokens)}, got {position}", param="position")
        replica = find_replica(model, None)
        if replica.facts.get("device") != "cpu":
            raise InvalidRequest("the inside of a model can be traced on a CPU only", param="model")
        start = time.monotonic()
        found = await _trace(request, replica, tokens, layer, position)
        if found is None:
            return Response(status_code=204)  # the client has gone
        named = _names(model.tokenizer)
        for entry in found["lens"]:
            entry["tokens"] = [named(token) for token in entry["tokens"]]
        return encode_response(
            {
                "tokens": [named(token) for token in tokens],
                "layer": layer,
                "position": position,
                "num_layers": spec.num_layers,
                "num_heads": spec.num_heads,
                "num_kv_heads": spec.num_kv_heads,
                "hidden_size": spec.hidden_size,
                "us": round((time.monotonic() - start) * 1e6),
                **found,
            }
        )


async def _trace(
    request: Request, replica: Replica, tokens: list[int], layer: int, position: int
) -> dict[str, Any] | None:
    """None: the client has disconnected, and the trace was cancelled."""
    arguments = {"tokens": tokens, "layer": layer, "position": position}
    deadline = time.monotonic() + PATIENCE_S
    while (number := await ask_engine(replica, "trace_start", **arguments)) is None:
        if await request.is_disconnected():
            return None
        if time.monotonic() > deadline:
            raise QueueFull("the model is being traced for others: try again soon")
        await asyncio.sleep(POLL_S)
    while (outcome := await ask_engine(replica, "trace_result", number=number)) is None:
        if await request.is_disconnected():
            await ask_engine(replica, "trace_cancel", number=number)
            return None
        await asyncio.sleep(POLL_S)
    if "error" in outcome:
        raise PenstockError(outcome["error"])
    found: dict[str, Any] = outcome["found"]
    return found


def _names(vocabulary: Vocabulary) -> Any:
    def named(token: int) -> dict[str, Any]:
        return {"id": token, "text": vocabulary.token_bytes(token).decode(errors="replace")}

    return named
