"""Schemas of request bodies. Bodies are checked by them, and /openapi.json is generated from them.

Null equals an absent field wherever a field is optional. So do "" and [] in many fields: Ollama's clients send them for
what they do not use.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from penstock.flow.params import MAX_LOGPROBS
from penstock.flow.tools import MAX_TOOLS
from penstock.http.api.fields import (
    MAX_INT,
    Arguments,
    StrictModel,
    field_error,
)
from penstock.http.api.ignored_fields import IgnoredField
from penstock.http.api.ollama.keep_alive import KeepAlive
from penstock.http.api.ollama.options import OllamaOptions
from penstock.http.api.ollama.think import Think
from penstock.http.parse.json_body import MAX_MEMBERS
from penstock.http.parse.unions import ByJsonType

MAX_INPUTS = 2048  # as in OpenAI's embeddings

_MODEL = "The model, as `GET /api/tags` names it; `:latest` may be left out."
_KEEP_ALIVE = Field(
    None,
    description="How long the idle model stays loaded: seconds, or a text such as `5m`; negative: for ever. A pinned "
    "model always stays loaded; 0, which asks to unload it, is then answered by a warning.",
)
_OPTIONS = Field(None, description="How tokens are drawn, and when to stop.")
_NO_IMAGES = IgnoredField(([],), "not supported (the model reads text only)")

Format = Annotated[Literal["", "json"] | dict[str, Any], ByJsonType('"json" or a JSON schema')]


# --- messages


class OllamaPastFunction(StrictModel):
    name: str = Field(min_length=1)
    arguments: Arguments = Field({}, description="An object, not a text.")
    index: int | None = Field(None, ge=0, le=MAX_INT, description="Its place among the calls of its message. Not used.")
    description: str | None = Field(None, description="Not used.")


class OllamaPastCall(StrictModel):
    only = ("function", 'calls of type "function"')

    function: OllamaPastFunction
    id: str | None = Field(None, description="What a message of the role `tool` calls it. Default: they go by order.")
    type: Literal["function"] | None = None


class OllamaMessage(StrictModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = Field(None, description="The text. An assistant's may be left out.")
    thinking: str | None = Field(None, description="What the assistant thought, for chat templates that show it.")
    tool_calls: Annotated[list[OllamaPastCall], Field(max_length=MAX_MEMBERS, fail_fast=True)] | None = Field(
        None, description="What the assistant called. Answered by messages of the role `tool`."
    )
    tool_name: str | None = Field(None, description="The tool that gave this result.")
    tool_call_id: str | None = Field(None, description="The call that this is the result of.")
    name: str | None = Field(None, description="Who speaks. Given to the chat template, which may show it or not.")
    images: Annotated[Any, _NO_IMAGES] = None

    @model_validator(mode="after")
    def _check_role(self) -> OllamaMessage:
        if self.content is None and self.role != "assistant":
            raise field_error("is required", "content")
        for role, names in (("assistant", ("tool_calls", "thinking")), ("tool", ("tool_name", "tool_call_id"))):
            for name in names:
                if self.role != role and getattr(self, name):
                    raise field_error(f"goes with the role {role} only", name)
        return self


# --- tools


class OllamaFunction(StrictModel):
    name: str = Field(min_length=1)
    description: str | None = Field(None, description="What it does, for the model to read.")
    parameters: dict[str, Any] | None = Field(
        None, description="JSON Schema of the arguments, which are an object. Default: there are none."
    )
    strict: bool | None = Field(None, description="Extension. As in OpenAI's tools.")


class OllamaTool(StrictModel):
    only = ("function", 'tools of type "function"')

    function: OllamaFunction
    type: Literal["function"] | None = None


# --- the bodies


class OllamaGeneration(StrictModel):
    """What chat and generate have in common."""

    model: str = Field(min_length=1, description=_MODEL)
    stream: bool | None = Field(None, description="Send the answer in lines while it is made. Default: true.")
    format: Format | None = Field(None, description="The answer is JSON: any object (`json`), or of this schema.")
    options: OllamaOptions | None = _OPTIONS
    keep_alive: KeepAlive = _KEEP_ALIVE
    think: Think = Field(
        None, description="Whether to think before answering, or how much. Default: as the model's template has it."
    )
    logprobs: bool | None = Field(None, description="Send the log-probability of each token of the answer.")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="And of this many likeliest tokens at its place. Needs `logprobs`."
    )
    truncate: bool | None = Field(
        None, description="A prompt that is too long is refused, not cut: true is answered by a warning."
    )
    shift: bool | None = Field(
        None, description="An answer ends where the context is full: true is answered by a warning."
    )

    @property
    def streamed(self) -> bool:
        return self.stream is not False

    @model_validator(mode="after")
    def _check_logprobs(self) -> OllamaGeneration:
        if self.top_logprobs and not self.logprobs:
            raise field_error("needs logprobs: true", "top_logprobs")
        return self


class OllamaChatRequest(OllamaGeneration):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "smollm2",
                    "messages": [{"role": "user", "content": "Hello!"}],
                    "options": {"num_predict": 16},
                    "stream": False,
                }
            ]
        }
    )

    messages: Annotated[list[OllamaMessage], Field(fail_fast=True)] | None = Field(
        None, description="The conversation so far. Without any, the answer says that the model is loaded."
    )
    tools: Annotated[list[OllamaTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        None, description="What the model may call."
    )


class OllamaGenerateRequest(OllamaGeneration):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "smollm2", "prompt": "Hello!", "options": {"num_predict": 16}, "stream": False}]
        }
    )

    prompt: str | None = Field(
        None, description="What the user says. Without it, the answer says that the model is loaded."
    )
    system: str | None = Field(None, description="What the model is told before.")
    raw: bool | None = Field(None, description="Take the prompt as it is, without the model's chat template.")
    suffix: Annotated[Any, IgnoredField(("",), "not supported (this model cannot fill gaps)")] = None
    template: Annotated[Any, IgnoredField(("",), "not supported (the model's own chat template is used)")] = None
    context: Annotated[Any, IgnoredField(([],), "not supported (send the conversation to /api/chat)")] = None
    images: Annotated[Any, _NO_IMAGES] = None
    width: Annotated[Any, IgnoredField()] = None
    height: Annotated[Any, IgnoredField()] = None
    steps: Annotated[Any, IgnoredField()] = None

    @model_validator(mode="after")
    def _check_raw(self) -> OllamaGenerateRequest:
        for name in ("system", "think") if self.raw else ():
            if getattr(self, name):
                raise field_error("does not go with raw, which takes the prompt as it is", name)
        return self


class OllamaEmbedRequest(StrictModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "smollm2", "input": ["A river.", "A turbine."]}]}
    )

    model: str = Field(min_length=1, description=_MODEL)
    input: Annotated[
        str | Annotated[list[str], Field(max_length=MAX_INPUTS, fail_fast=True)],
        ByJsonType("a string or a list of strings"),
    ] = Field(description="What to embed: a text, or a list of up to 2048.")
    truncate: bool | None = Field(
        None, description="Embed the beginning of a text that the context does not hold. Default: true."
    )
    dimensions: int | None = Field(
        None, ge=1, le=MAX_INT, description="So many of the vector's numbers, again of unit length. Default: all."
    )
    options: OllamaOptions | None = _OPTIONS
    keep_alive: KeepAlive = _KEEP_ALIVE


class OllamaEmbeddingsRequest(StrictModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "smollm2", "prompt": "A river."}]})

    model: str = Field(min_length=1, description=_MODEL)
    prompt: str | None = Field(None, description="What to embed.")
    options: OllamaOptions | None = _OPTIONS
    keep_alive: KeepAlive = _KEEP_ALIVE


class OllamaNamed(StrictModel):
    """A model, as it is called now or as older clients do. Some send both, one of them empty."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["model"], "properties": {"model": {"type": "string", "minLength": 1}}},
                {"required": ["name"], "properties": {"name": {"type": "string", "minLength": 1}}},
            ]
        }
    )

    model: str | None = Field(None, description=_MODEL)
    name: str | None = Field(None, description="The older name of `model`.")

    @property
    def model_name(self) -> str:
        return self.model or self.name or ""

    @model_validator(mode="after")
    def _check_name(self) -> OllamaNamed:
        if not self.model_name:
            raise field_error("is required", "model")
        if self.name and self.name != self.model_name:
            raise field_error("is not the same as model, its newer name", "name")
        return self


class OllamaShowRequest(OllamaNamed):
    verbose: Annotated[Any, IgnoredField((False,))] = None
    system: Annotated[Any, IgnoredField(("",))] = None
    template: Annotated[Any, IgnoredField(("",))] = None
    options: Annotated[Any, IgnoredField(({},))] = None


class OllamaPullRequest(OllamaNamed):
    stream: bool | None = Field(None, description="Send lines that tell how far it has come. Default: true.")
    insecure: Annotated[Any, IgnoredField((False,))] = None
    username: Annotated[Any, IgnoredField(("",))] = None
    password: Annotated[Any, IgnoredField(("",))] = None
