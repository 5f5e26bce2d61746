"""The capacity planner's routes: what a model needs and can do on given hardware, and a prompt's token budget. They do
not use the engine.

Over HTTP a model is the served one, a preset, or numbers: file names are not accepted, and nothing is downloaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict, replace
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from penstock import flow
from penstock.capacity import device, shape
from penstock.capacity.answer import Plan
from penstock.capacity.find import find_device, find_shape
from penstock.capacity.formats import FORMATS, KV_FORMATS, KV_PAIRS
from penstock.capacity.measured import Observed, StepSeen, compare
from penstock.capacity.planner import plan
from penstock.capacity.probe import this_machine
from penstock.capacity.question import CPU_DEFAULTS, Question, question, question_for
from penstock.capacity.support import formats_not_run
from penstock.deployment.local_model import LocalModel
from penstock.deployment.registry import ModelRegistry
from penstock.errors import NotFound
from penstock.flow.identity import Source
from penstock.gateway.context.budget import DEFAULT_OUTPUT, Budget, Prompt, budget
from penstock.gateway.context.plan import plan_assembly, within
from penstock.gateway.keys.identity import Scope
from penstock.http.api.chat_messages import Messages, to_template
from penstock.http.api.context_fields import ContextOptions, Documents, to_documents
from penstock.http.api.fields import MAX_INT, MODEL, StrictModel
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import identity_of
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.body import read_body, read_object
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.observe.observer import Observer
from penstock.observe.performance import ENOUGH_STEPS, performance_figures
from penstock.observe.trace.journal import Journal
from penstock.settings.context import ContextSettings

MAX_BATCHES = 8  # batch sizes with measured figures


class PresetModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    parameters: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    tied: bool
    window: int
    windowed_layers: int


class PresetFormat(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    bits: float


class Presets(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner knows by name, and its defaults."""

    model: str  # the first that is served; the first of `models`
    models: list[PresetModel]
    hardware: list[device.Device]
    formats: list[PresetFormat]
    kv_formats: list[str]
    defaults: dict[str, str | float | None]
    cpu_defaults: dict[str, str | float]  # instead, where the hardware is a CPU
    not_run: dict[str, dict[str, list[str]]]  # formats that Penstock cannot run, by kind of device and field


class BudgetRequest(StrictModel):
    """The parts of a prompt, in the order in which they would be sent."""

    model: str | None = MODEL
    system: str | None = Field(None, description="The system message.")
    history: Messages | None = Field(None, description="The conversation so far.")
    documents: Documents | None = Field(
        None, description="Texts to go before the user's own, or documents as in a chat completion."
    )
    user: str | None = Field(None, description="The user's message.")
    reserved_output: int | None = Field(
        None, ge=1, le=MAX_INT, description=f"Tokens kept for the answer. Default: {DEFAULT_OUTPUT}."
    )
    context: int | None = Field(None, ge=1, le=MAX_INT, description="Tokens in all. Default: the server's context.")
    assembly: ContextOptions | None = Field(
        None, description="Show what context assembly makes of it with these options: `context` of a chat completion."
    )


REQUESTS = (BudgetRequest,)
ANSWERS = (Question, Plan, Budget, Presets)


def add(app: App, service: Service, observer: Observer | None) -> None:
    observe = app.requiring(Scope.OBSERVE)

    @observe.get("/plan/presets", **route_docs(None, Presets))
    async def plan_presets(request: Request) -> Response:
        """Models and hardware that the planner knows by name."""
        return json_response(encode_presets(service.models_of(identity_of(request.scope))))

    @observe.post("/plan", **route_docs(Question, Plan))
    async def plan_capacity(request: Request) -> Response:
        """What a model needs of a machine and can do on it. Computed; nothing is run."""
        values, models = await read_object(request), service.models_of(identity_of(request.scope))
        model, seen = _planned_model(models, values), None
        if observer is not None:
            seen = await asyncio.to_thread(observed_speed, model, observer.journal)
        return json_response(await asyncio.to_thread(encode_plan, models, values, seen))

    @app.requiring(Scope.INFERENCE).post("/plan/budget", **route_docs(BudgetRequest, Budget))
    async def plan_budget(request: Request) -> Response:
        """How the parts of a prompt and its answer share the context."""
        body = await read_body(BudgetRequest, request)
        model = service.models_of(identity_of(request.scope)).find_local(body.model)
        defaults = service.gateway.context_builder.defaults_of(model)
        return json_response(await asyncio.to_thread(encode_budget, model, body, defaults))


def _planned_model(models: ModelRegistry, values: dict[str, Any]) -> LocalModel:
    """The served model that a question is about, or else the default one."""
    name = values.get("model")
    known = {model.name: model for model in models.local}
    return known[name] if isinstance(name, str) and name in known else models.find_local(None)


def _served_shape(model: LocalModel) -> shape.Shape:
    return replace(shape.shape_of(model.files.spec), name=model.name)


def encode_plan(models: ModelRegistry, values: dict[str, Any], seen: Observed | None) -> bytes:
    """`seen` is this server's measured speed, for comparison if the question is about the served model."""
    parsed = question(values)
    model = _planned_model(models, values)
    served = _served_shape(model)
    chosen = find_shape(parsed.model, {one.name: _served_shape(one) for one in models.local})
    kind: Literal["cpu", "cuda"] = "cpu" if model.replicas.facts.get("device", "cpu") == "cpu" else "cuda"
    hardware = find_device(parsed.hardware, lambda: this_machine(kind))
    planned = plan(question_for(hardware, chosen, values), chosen, hardware)
    if seen is not None and parsed.model == model.name:
        planned = replace(planned, measured=compare(seen, served, hardware))
    return msgspec.json.encode(planned)


def observed_speed(model: LocalModel, journal: Journal) -> Observed | None:
    """This server's measured speed; None while there is no engine. For a thread: it fits costs to thousands of steps,
    and imports numpy for that."""
    facts = model.replicas.facts
    if not facts:
        return None
    served = _served_shape(model)
    traces = [
        trace
        for trace in list(journal.done)
        if trace.kind in ("chat", "completion") and trace.source.model == model.name
    ]
    answered = [sequence for trace in traces for sequence in trace.sequences if sequence.output_tokens]
    seen = performance_figures(journal, Source(model.name))
    steps = [entry for entry in seen["decode_by_batch"] if entry["batch"] and entry["steps"] >= ENOUGH_STEPS]
    return Observed(
        weights=_kept_as(facts, served),
        kv=facts["kv_dtype"],
        weights_bytes=facts["weights_bytes"],
        kv_bytes=facts["kv_bytes"],
        kv_tokens=facts["kv_tokens"],
        step_tokens=facts["step_tokens"],
        tensor_parallel=facts["tensor_parallel"],
        requests=len(answered),
        prompt_tokens=_mean([max(1, one.prompt_tokens - one.cached) for one in answered]),
        output_tokens=_mean([one.output_tokens for one in answered]),
        prefill_tokens_per_s=seen["prefill_tokens_per_s"],
        steps=tuple(StepSeen(entry["batch"], entry["step_us_p50"] / 1e6) for entry in steps[:MAX_BATCHES]),
    )


def _kept_as(facts: dict[str, Any], served: shape.Shape) -> str:
    """The planner's name of it."""
    if facts["kernels"].startswith("native"):
        return served.stored
    if facts["weights"] in shape.QUANTIZED:  # at load
        return shape.QUANTIZED[facts["weights"]]
    return facts["dtype"] if facts["weights"] == facts["dtype"] else served.stored


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def encode_presets(models: ModelRegistry) -> bytes:
    """The served models first."""
    served = [_served_shape(model) for model in models.local]
    if not served:
        raise NotFound("there is no local model to plan for")
    names = {one.name for one in served}
    shapes = [*served, *(one for one in shape.PRESETS.values() if one.name not in names)]
    defaults = {
        field.name: field.default
        for field in msgspec.structs.fields(Question)
        if field.default is not msgspec.NODEFAULT
    }
    return msgspec.json.encode(
        Presets(
            model=served[0].name,
            models=[_preset_model(one) for one in shapes],
            hardware=list(device.PRESETS.values()),
            formats=[PresetFormat(name=one.name, bits=one.bits) for one in FORMATS.values()],
            kv_formats=[*KV_FORMATS, *KV_PAIRS],
            defaults=defaults,
            cpu_defaults=CPU_DEFAULTS,
            not_run=formats_not_run(),
        )
    )


def _preset_model(one: shape.Shape) -> PresetModel:
    shown = PresetModel.__struct_fields__
    numbers = {name: value for name, value in asdict(one).items() if name in shown}
    return PresetModel(parameters=one.parameters, **numbers)


def encode_budget(model: LocalModel, body: BudgetRequest, defaults: ContextSettings) -> bytes:
    """With the served model's tokenizer and chat template, and its defaults of context assembly."""

    def render(messages: list[flow.Message]) -> list[int]:
        return model.pipeline.tokenize(flow.Request(id="", params=flow.SamplingParams(), messages=messages))

    prompt = Prompt(
        system=body.system or "",
        history=to_template(body.history or []),
        documents=to_documents(body.documents or ()),
        user=body.user or "",
    )
    given = [document.text for document in prompt.given()]
    texts = [prompt.system, prompt.user, *given, *(str(turn.get("content")) for turn in prompt.history)]
    model.pipeline.check_length(sum(map(len, texts)), "documents" if given else "history")
    reserved = body.reserved_output or DEFAULT_OUTPUT
    made = budget(
        prompt,
        tokenizer=model.tokenizer,
        render=render if model.pipeline.template is not None else None,
        reserved_output=reserved,
        context=body.context or model.pipeline.context,
    )
    if body.assembly is not None:
        settings = within(body.assembly.settings().over(defaults), body.context)
        trace = plan_assembly(prompt, settings, model.pipeline, reserved_output=reserved)
        made = replace(made, assembled=trace)
    return msgspec.json.encode(made)
