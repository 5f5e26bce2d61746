"""Models for context assembly: SmolLM2's tokenizer with published chat templates of several families."""

from __future__ import annotations

from functools import cache

from helpers import reference_data
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
