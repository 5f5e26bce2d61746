"""What there is to know about a draft head except its weights."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.store.spec import ModelSpec


class ChainHeadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A head that drafts a token at a time.

    EAGLE-1   x = fuse([embedding, feature]);            layers(x) is the next feature and what the output head reads
    EAGLE-3   feature = fuse(taps); attention reads [norm(embedding), norm(feature)], the residual is the feature;
              the layer's output is the next feature, its norm is what the output head reads
    MTP       x = fuse([norm(feature), norm(embedding)]); norm(layers(x)) is the next feature and what the head reads
    """

    kind: Literal["eagle", "eagle3", "mtp"]
    layers: ModelSpec  # the head's decoder layers
    target_hidden_size: int
    # Layers of the target: the residual stream before each is read. Empty: its hidden states after the final norm.
    taps: tuple[int, ...] = ()
    draft_vocab_size: int  # tokens that it can draft
    norm_before_residual: bool = False  # of EAGLE-3: the residual is the norm of the feature

    @property
    def hidden_size(self) -> int:
        return self.layers.hidden_size


class MedusaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Heads that each draft one of the tokens after the next, from one hidden state after the target's final norm."""

    num_heads: int  # head i drafts the token i + 1 places after the one that the target samples
    num_blocks: int  # residual blocks of a head
    hidden_size: int
    draft_vocab_size: int
