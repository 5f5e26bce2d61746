"""`options`: Ollama's model parameters, and how each is handled.

honoured   sampling and stop conditions
ignored    neutral values: num_keep, num_ctx up to the server's context, mirostat: 0
warned     what has no effect and cannot change the output: how the model is loaded (num_gpu, …)
rejected   what would change the output: mirostat: 1, tfs_z: 0.5
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from penstock.flow import Constraint, SamplingParams
from penstock.flow.params import MAX_STOPS
from penstock.http.api.fields import MAX_INT, TEMPERATURE, TOP_P, StrictModel, field_error
from penstock.http.api.generation_fields import SPECULATION
from penstock.http.api.ignored_fields import IgnoredField
from penstock.http.api.recommended_sampling import merge_recommended
from penstock.http.parse.unions import ByJsonType

_Stop = Annotated[str, Field(min_length=1)]
Stop = Annotated[
    _Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS, fail_fast=True)],
    ByJsonType("a string or a list of strings"),
]
Whole = Annotated[int | None, Field(ge=-MAX_INT, le=MAX_INT)]

# Ollama's sampling defaults, where neither the request nor the model sets them. Without its repeat_penalty of 1.1:
# there it covers the last 64 tokens, over a whole conversation it would do harm.
DEFAULTS: dict[str, float | int] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}

# Options of loading, which the server's settings decide, with their neutral values.
LOADING: dict[str, tuple[Any, ...]] = {
    "num_gpu": (-1,),
    "main_gpu": (0,),
    "num_thread": (0,),
    "num_batch": (),
    "numa": (False,),
    "low_vram": (False,),
    "f16_kv": (True,),
    "use_mmap": (True, False),
    "use_mlock": (False,),
}
_LOADING = "How the model is to be loaded: the server's settings decide that."
_OFF = IgnoredField((False,))


class OllamaOptions(StrictModel):
    temperature: float | None = Field(None, ge=0, le=100, description=TEMPERATURE.replace("else 1", "else 0.8"))
    top_k: int | None = Field(
        None, ge=-1, le=MAX_INT, description="Draw from this many likeliest tokens. 0 or -1: all. Default: 40."
    )
    top_p: float | None = TOP_P
    min_p: float | None = Field(
        None, ge=0, le=1, description="Leave out tokens less likely than this share of the likeliest."
    )
    typical_p: float | None = Field(
        None, gt=0, le=1, description="Draw from the most typical tokens that have this probability."
    )
    seed: int | None = Field(
        None, ge=-(2**63), le=2**63 - 1, description="The same seed gives the same answer. -1: a fresh one."
    )
    num_predict: int | None = Field(
        None,
        ge=-2,
        le=MAX_INT,
        description="Maximum number of tokens to generate, or what the context leaves if that is less. -1, -2 and the "
        "default: as many as the context holds.",
    )
    stop: Stop | None = Field(None, description="Texts that end the answer, and are not part of it.")
    speculation: bool | None = SPECULATION
    repeat_penalty: float | None = Field(
        None, ge=0.01, le=100, description="Above 1: tokens of the prompt and the answer become less likely."
    )
    repeat_last_n: int | None = Field(
        None,
        ge=-1,
        le=MAX_INT,
        description="How far back `repeat_penalty` looks. 0: nowhere; -1: over everything, as by default. Other values "
        "are answered by a warning.",
    )
    presence_penalty: float | None = Field(None, ge=-100, le=100, description="Taken from tokens that have been used.")
    frequency_penalty: float | None = Field(None, ge=-100, le=100, description="Taken from tokens for each use so far.")
    penalize_newline: bool | None = Field(None, description="Not false where there is a `repeat_penalty`.")
    num_ctx: int | None = Field(
        None, ge=1, le=MAX_INT, description="The context is the server's: more than that is answered by a warning."
    )
    num_keep: Whole = Field(None, description="What stays of a prompt that is cut. None is cut: not used.")

    mirostat: Annotated[Any, IgnoredField((0,))] = None
    mirostat_tau: float | None = Field(None, description="Of mirostat, which is not supported: not used.")
    mirostat_eta: float | None = Field(None, description="Of mirostat, which is not supported: not used.")
    tfs_z: Annotated[Any, IgnoredField((1, 1.0))] = None

    num_gpu: Whole = Field(None, description=_LOADING)
    main_gpu: Whole = Field(None, description=_LOADING)
    num_thread: Whole = Field(None, description=_LOADING)
    num_batch: Whole = Field(None, description=_LOADING)
    numa: bool | None = Field(None, description=_LOADING)
    low_vram: bool | None = Field(None, description=_LOADING)
    f16_kv: bool | None = Field(None, description=_LOADING)
    use_mmap: bool | None = Field(None, description=_LOADING)
    use_mlock: bool | None = Field(None, description=_LOADING)
    vocab_only: Annotated[Any, _OFF] = None
    logits_all: Annotated[Any, _OFF] = None
    embedding_only: Annotated[Any, _OFF] = None

    @model_validator(mode="after")
    def _check_values(self) -> OllamaOptions:
        if self.num_predict == 0:
            raise field_error("must be at least 1, or -1 or -2 for no bound, got 0", "num_predict")
        if self.penalize_newline is False and self.penalty is not None:
            raise field_error("is false, but repeat_penalty applies to all tokens alike", "penalize_newline")
        return self

    @property
    def penalty(self) -> float | None:
        """The effective repeat_penalty; None if it has no effect."""
        return None if self.repeat_last_n == 0 or self.repeat_penalty == 1 else self.repeat_penalty


NONE = OllamaOptions.model_construct()


def sampling_params(
    options: OllamaOptions | None,
    recommended: Mapping[str, float | int],
    *,
    constraint: Constraint | None = None,
    logprobs: int | None = None,
) -> SamplingParams:
    """`recommended` is ModelFiles.sampling, which overrides Ollama's defaults."""
    requested = options or NONE
    given = {
        "temperature": requested.temperature,
        "top_k": None if requested.top_k is None else max(requested.top_k, 0),
        "top_p": requested.top_p,
        "min_p": requested.min_p,
        "typical_p": requested.typical_p,
        "seed": None if requested.seed == -1 else requested.seed,
        "repetition_penalty": 1.0 if requested.repeat_last_n == 0 else requested.repeat_penalty,
        "presence_penalty": requested.presence_penalty,
        "frequency_penalty": requested.frequency_penalty,
        "speculation": requested.speculation,
    }
    bounded = requested.num_predict is not None and requested.num_predict > 0
    return SamplingParams(
        **merge_recommended({**DEFAULTS, **recommended}, given),
        max_tokens=requested.num_predict if bounded else None,
        stop=(requested.stop,) if isinstance(requested.stop, str) else tuple(requested.stop or ()),
        constraint=constraint,
        logprobs=logprobs,
    )


def option_warnings(options: OllamaOptions | None, context: int | None) -> tuple[str, ...]:
    """Options without effect. `context` is the server's; None: it is not known."""
    requested = options or NONE
    warnings = []
    if requested.num_ctx is not None and context is not None and requested.num_ctx > context:
        warnings.append(f"options.num_ctx is {requested.num_ctx}, but this server's context is {context}")
    if requested.penalty is not None and requested.repeat_last_n is not None and requested.repeat_last_n > 0:
        warnings.append("options.repeat_last_n has no effect: repeat_penalty applies to the whole text")
    for name, neutral in LOADING.items():
        value = getattr(requested, name)
        if value is not None and value not in neutral:
            warnings.append(f"options.{name} has no effect: the server's settings decide how the model is loaded")
    return tuple(warnings)
