"""Puts together what a frontend has of a model: its files, its pipeline, and the model around its replicas."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import InvalidRequest, InvalidSetting, ModelInvalid, PenstockError
from penstock.flow import SamplingParams
from penstock.flow.identity import SequenceNumbers
from penstock.settings import Settings
from penstock.store.files import ModelFiles
from penstock.store.progress import Progress
from penstock.store.resolve import resolve, resolve_draft_model
from penstock.store.spec_check import chosen_context
from penstock.system.heap import trim_heap

if TYPE_CHECKING:
    from penstock.deployment.local_model import LocalModel
    from penstock.deployment.protocol import ModelCard
    from penstock.deployment.replica_set import ReplicaSet
    from penstock.deployment.upstream_endpoint import Endpoint
    from penstock.deployment.upstream_model import UpstreamModel
    from penstock.observe.events import Emit, Listener
    from penstock.pipeline import Pipeline
    from penstock.settings.models import Capability
    from penstock.tokenize.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def model(settings: Settings, pulling: Progress | None = None) -> ModelFiles:
    """The model's files for a frontend, downloaded if need be. Recommended sampling parameters that are out of bounds
    are dropped with a warning."""
    if settings.models:
        raise InvalidSetting("[[models]] is for penstock serve: name one model", param="models")
    files = resolve_files(settings, pulling)
    drafts, _, draft_model = settings.engine.speculate.partition(":")
    if drafts == "draft" and draft_model:
        resolve_draft_model(draft_model, progress=pulling)
    sampling = {}
    for name, value in files.sampling.items():
        try:
            SamplingParams(**{name: value})  # type: ignore[arg-type]
        except InvalidRequest as error:
            logger.warning("ignored a recommended sampling parameter of %s: %s", files.name, error.message)
        else:
            sampling[name] = value
    return msgspec.structs.replace(files, sampling=sampling)


def resolve_files(settings: Settings, pulling: Progress | None = None) -> ModelFiles:
    return resolve(settings.model.model, progress=pulling, weights=settings.model.load_format != "dummy")


def pipeline(settings: Settings, files: ModelFiles) -> Pipeline:
    """The pipeline of a library: without events."""
    from penstock.tokenize.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(files.tokenizer) if files.tokenizer is not None else None
    trim_heap()  # before the weights take their memory
    return make_pipeline(settings, files, tokenizer)


def local_model(
    settings: Settings,
    files: ModelFiles,
    replicas: ReplicaSet,
    numbers: SequenceNumbers,
    journal: Listener | None = None,
) -> LocalModel:
    """A model around its replicas. `numbers` are the server's."""
    from penstock.deployment.local_model import LocalModel
    from penstock.deployment.protocol import ModelCard
    from penstock.tokenize.tokenizer import Tokenizer

    if files.tokenizer is None:
        raise ModelInvalid(f"{files.name} has no tokenizer, so it cannot be served", param="model")
    tokenizer = Tokenizer.load(files.tokenizer)
    emit = None if journal is None else journal.record
    pipeline = make_pipeline(settings, files, tokenizer, emit, settings.serve.default_max_tokens, numbers)
    capabilities: set[Capability] = {"completion", "embedding", "structured_output", "logprobs", "token_ids"}
    if pipeline.chat_format is not None:
        capabilities |= {"chat", "tools"}
        if pipeline.chat_format.reasoning is not None:
            capabilities.add("reasoning")
    card = ModelCard(
        name=files.name,
        context=pipeline.context,
        capabilities=frozenset(capabilities),
        drafts=settings.engine.speculate.partition(":")[0],  # not from where: that is a path of the server
        recommended={**files.sampling, **({} if files.max_tokens is None else {"max_tokens": files.max_tokens})},
        created=int(time.time()),
    )
    return LocalModel(card, files, pipeline, tokenizer, replicas, max_waiting=settings.schedule.max_waiting)


def upstream_model(
    endpoint: Endpoint,
    card: ModelCard,
    numbers: SequenceNumbers,
    tokenizer: str | None = None,
    journal: Listener | None = None,
) -> UpstreamModel:
    """A model of another server. `tokenizer` is a source of models whose tokenizer counts its tokens."""
    from penstock.deployment.upstream_model import UpstreamModel

    counter = None
    if tokenizer is not None:
        from penstock.tokenize.tokenizer import Tokenizer

        try:
            files = resolve(tokenizer, weights=False)
        except PenstockError as error:
            raise type(error)(f"{card.name}: tokenizer: {error.message}", param="tokenizer") from None
        if files.tokenizer is None:
            raise ModelInvalid(f"{card.name}: tokenizer: the model {tokenizer} has no tokenizer", param="tokenizer")
        counter = Tokenizer.load(files.tokenizer)
    return UpstreamModel(endpoint, card, numbers, counter, None if journal is None else journal.record)


def make_pipeline(
    settings: Settings,
    files: ModelFiles,
    tokenizer: Tokenizer | None,
    emit: Emit | None = None,
    default_max_tokens: int | None = None,
    numbers: SequenceNumbers | None = None,
) -> Pipeline:
    from penstock.grammar.checker import Checker
    from penstock.pipeline import Pipeline
    from penstock.prompt.template import ChatTemplate

    spec = files.spec
    return Pipeline(
        spec,
        tokenizer,
        ChatTemplate(files.chat_template, files.special_tokens) if files.chat_template is not None else None,
        context=chosen_context(spec, settings.model.context),
        constraints=Checker(files.tokenizer, spec.vocab_size, spec.end_tokens),
        by_priority=settings.schedule.policy in ("fair", "priority"),
        default_max_tokens=default_max_tokens,
        emit=emit,
        model=files.name,
        numbers=numbers,
    )
