"""From the sampling fields of a body to flow.SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.flow import SamplingParams
from penstock.http.api.generation_fields import stop_strings
from penstock.http.api.openai.schemas import GenerationFields
from penstock.http.api.recommended_sampling import merge_recommended

# Fields that need more than a copy, or that each API words in its own way.
_CONVERTED = {"top_k", "logit_bias", "stop", "max_tokens", "prompt_logprobs"}
# Fields that have the same name, meaning and type on both sides.
_SAME = tuple(
    name for name in SamplingParams.__struct_fields__ if name in GenerationFields.model_fields.keys() - _CONVERTED
)


def sampling_params(
    body: GenerationFields,
    recommended: Mapping[str, float | int],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """As the body has it; the defaults are OpenAI's."""
    given = {name: getattr(body, name) for name in _SAME}
    given["top_k"] = 0 if body.top_k == -1 else body.top_k
    return SamplingParams(
        **merge_recommended(recommended, given),
        max_tokens=max_tokens,
        logit_bias={int(token): bias for token, bias in (body.logit_bias or {}).items()},
        stop=stop_strings(body.stop),
        stop_tokens=tuple(body.stop_token_ids or ()),
        timeout_s=body.timeout,
        constraint=body.constraint(),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )
