"""The request in a slot, as samplers read it on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.flow import Admit, SamplingParams
from penstock.kernels import sampling_layout
from penstock.kernels.sampling_layout import FILTERS, PENALTIES
from penstock.sample.masks import TokenMasks
from penstock.sample.noise_stream import noise_stream

# plain: temperature alone; typical: typical_p, with or without other filters
DrawKind = Literal["greedy", "plain", "filtered", "typical"]


@dataclass(frozen=True, slots=True)
class SlotRequest:
    slot: int
    params: SamplingParams
    prompt_length: int
    kind: DrawKind
    masks: TokenMasks | None
    draw_params: dict[str, float]  # the fields of `kernels.sampling_layout`; position 0

    @classmethod
    def of(cls, admit: Admit, vocab_size: int) -> SlotRequest:
        params = admit.params
        masks = TokenMasks.of(admit, vocab_size)
        draw_params = sampling_layout.values(params, vocab_size) | {
            "stream": noise_stream(admit.seed, admit.choice),
            "slot": admit.slot,
            "position": 0,
            "prompt_length": admit.prompt_length,
            "num_biases": 0 if masks is None or masks.bias is None else len(masks.bias),
            "masked": params.constraint is not None or (masks is not None and masks.bans),
            "mask_row": admit.slot,
        }
        kind = _draw_kind(params, draw_params)
        return cls(admit.slot, params, admit.prompt_length, kind, masks, draw_params)

    @property
    def penalised(self) -> bool:
        return sampling_layout.enabled(PENALTIES, self.draw_params)

    @property
    def adjusts_logits(self) -> bool:
        """Biases, bans, penalties or a constraint change its logits before the draw."""
        return bool(self.draw_params["num_biases"] or self.draw_params["masked"] or self.penalised)

    @property
    def has_static_bans(self) -> bool:
        """It bans tokens regardless of the output so far. With a constraint the matcher applies the bans."""
        return self.masks is not None and self.masks.bans and self.params.constraint is None

    def before_min_tokens(self, position: int) -> bool:
        """Whether the token at `position` is one of the first `min_tokens`."""
        return position - self.prompt_length < self.params.min_tokens


def _draw_kind(params: SamplingParams, draw_params: dict[str, float]) -> DrawKind:
    if params.greedy:
        return "greedy"
    if params.typical_p < 1.0:
        return "typical"
    return "filtered" if sampling_layout.enabled(FILTERS, draw_params) else "plain"
