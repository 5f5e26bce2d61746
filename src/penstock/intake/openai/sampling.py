"""From the sampling fields of a body to flow.SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.flow import SamplingParams
from penstock.intake.openai.schemas import Generation

# Fields that have the same name, meaning and type on both sides.
_SAME = (
    "n",
    "seed",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "ignore_eos",
)


def sampling_params(
    body: Generation,
    recommended: Mapping[str, float | int],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """What the client gives counts; then what the model's makers recommend, then the defaults, which are OpenAI's."""
    given = {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    return SamplingParams(
        **{**recommended, **given},
        max_tokens=max_tokens,
        logit_bias={int(token): bias for token, bias in (body.logit_bias or {}).items()},
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        stop_tokens=tuple(body.stop_token_ids or ()),
        timeout_s=body.timeout,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )
