"""The request in a slot, as samplers read it on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.flow import Admit, SamplingParams
from penstock.kernels.sampling_layout import FIELDS
from penstock.sample import filters, noise, penalties
from penstock.sample.filters import FilterValues
from penstock.sample.masks import TokenMasks

# plain: temperature alone; typical: typical_p, with or without other filters
DrawKind = Literal["greedy", "plain", "filtered", "typical"]


@dataclass(frozen=True, slots=True)
class SlotRequest:
    slot: int
    params: SamplingParams
    prompt_length: int
    kind: DrawKind
    stream: int  # of noise
    masks: TokenMasks | None
    draw_params: tuple[float, ...]  # in the order of `kernels.sampling_layout.FIELDS`; position 0
    reads_logits: bool  # the host changes its logits before the draw, or reports them

    @classmethod
    def of(cls, admit: Admit, vocab_size: int) -> SlotRequest:
        params = admit.params
        stream = noise.stream(admit.seed, admit.choice)
        masks = TokenMasks.of(admit, vocab_size)
        constrained = params.constraint is not None
        return cls(
            slot=admit.slot,
            params=params,
            prompt_length=admit.prompt_length,
            kind=_draw_kind(params, vocab_size),
            stream=stream,
            masks=masks,
            draw_params=_draw_params(admit, vocab_size, stream, masks),
            reads_logits=constrained or bool(admit.inspect) or params.logprobs is not None or masks is not None,
        )

    @property
    def argmax_only(self) -> bool:
        """Its token is that of the model's largest logit, and it asks for nothing else."""
        return self.kind == "greedy" and not self.reads_logits and not penalties.enabled(self.params)

    @property
    def adjusts_logits(self) -> bool:
        """Biases, bans, penalties or a constraint change its logits before the draw."""
        return self.masks is not None or self.params.constraint is not None or penalties.enabled(self.params)

    @property
    def has_static_bans(self) -> bool:
        """It bans tokens regardless of the output so far. With a constraint the matcher applies the bans."""
        return self.masks is not None and self.masks.bans and self.params.constraint is None

    def before_min_tokens(self, position: int) -> bool:
        """Whether the token at `position` is one of the first `min_tokens`."""
        return position - self.prompt_length < self.params.min_tokens


def _draw_kind(params: SamplingParams, vocab_size: int) -> DrawKind:
    if params.greedy:
        return "greedy"
    if params.typical_p < 1.0:
        return "typical"
    return "filtered" if filters.enabled(params, vocab_size) else "plain"


def _draw_params(admit: Admit, vocab_size: int, stream: int, masks: TokenMasks | None) -> tuple[float, ...]:
    params = admit.params
    values: dict[str, float] = FilterValues.of(params, vocab_size)._asdict()
    values |= penalties.values(params)
    values |= {
        "stream": stream,
        "slot": admit.slot,
        "position": 0,
        "prompt_length": admit.prompt_length,
        "num_biases": 0 if masks is None or masks.bias is None else len(masks.bias),
        "masked": params.constraint is not None or (masks is not None and masks.bans),
    }
    if params.greedy:
        values["temperature"] = 0.0
    return tuple(values[field.name] for field in FIELDS)
