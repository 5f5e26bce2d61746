"""Models for context assembly: SmolLM2's tokenizer with published chat templates of several families."""

from __future__ import annotations

from functools import cache
from typing import Any

from helpers import reference_data
from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import ModelCard, Price
from penstock.gateway.context.prompt_model import PromptModel
from penstock.pipeline import Pipeline
from penstock.prompt.template import ChatTemplate
from penstock.tokenize.tokenizer import Tokenizer

CONTEXT = 4096
DOCUMENTS_TEMPLATE = "ibm-granite-granite-3.3-2B-Instruct"  # has a variable `documents`
TEMPLATES = ("smollm2", "Qwen-Qwen2.5-7B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407")


@cache
def prompt_model(template: str) -> PromptModel:
    files = reference_data.smollm2()
    source = files.chat_template
    if template != "smollm2":
        source = {path.stem: path for path in reference_data.chat_templates()}[template].read_text()
    assert files.tokenizer is not None
    assert source is not None
    chat = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>", **files.special_tokens})
    return PromptModel(Pipeline(files.spec, Tokenizer.load(files.tokenizer), chat, context=CONTEXT, model=template))


class NoReplicas:
    """Of a model that never gets to an engine."""

    def add_ready_listener(self, _: object) -> None: ...


def local_model(name: str = "main", template: str = "smollm2", price: Price | None = None) -> LocalModel:
    """A LocalModel without an engine: its tokenizer and template are real."""
    pipeline = prompt_model(template).pipeline
    card = ModelCard(name=name, context=CONTEXT, price=price)
    replicas: Any = NoReplicas()
    tokenizer: Any = pipeline.tokenizer
    return LocalModel(card, reference_data.smollm2(), pipeline, tokenizer, replicas, max_waiting=100)
