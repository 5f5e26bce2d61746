"""A chain head in numpy: what EAGLE-1, EAGLE-3 and MTP heads compute.

    sequence = HeadSequence(spec)
    head.extend(sequence, tokens, states)     # tokens 1 .. n with the target's states of 0 .. n - 1
    drafts = head.draft(sequence, most=4)     # tokens n + 1, n + 2, ...

Entry i of a sequence is the token i + 1 with the feature of token i. Its output is the feature of token i + 1, from
which the token i + 2 is drafted. Drafts use entries of their own, which the next `extend` replaces by true ones.
"""

from __future__ import annotations

import numpy as np

from penstock.kernels.arrays import Array
from penstock.model.layers.rope import rotary_table
from penstock.speculate.heads.spec import ChainHeadSpec
from penstock.speculate.heads.weights import ChainHeadWeights, LayerWeights, Projection

GROWTH = 256  # entries by which the memory of a sequence grows


class HeadSequence:
    """Keys and values of one sequence's entries, and the feature that its next draft begins with."""

    def __init__(self, spec: ChainHeadSpec) -> None:
        layers = spec.layers
        shape = (layers.num_layers, 0, layers.num_kv_heads, layers.head_dim)
        self.keys, self.values = np.empty(shape, np.float32), np.empty(shape, np.float32)
        self.length = 0  # true entries
        self.feature: Array | None = None  # [hidden] after the last of them

    def reserve(self, length: int) -> None:
        if length > self.keys.shape[1]:
            more = -(-(length - self.keys.shape[1]) // GROWTH) * GROWTH
            padding = ((0, 0), (0, more), (0, 0), (0, 0))
            self.keys, self.values = np.pad(self.keys, padding), np.pad(self.values, padding)


class ChainHead:
    """Owns nothing that changes; sequences are the caller's."""

    def __init__(
        self, spec: ChainHeadSpec, weights: ChainHeadWeights, embedding: Array, head: Array, context: int
    ) -> None:
        """`embedding` [vocab, hidden] and `head` [vocab, hidden] are the target's, used where the head has none of its
        own."""
        self.spec, self._weights = spec, weights
        self._embedding = embedding if weights.embedding is None else weights.embedding
        if weights.head is not None:
            self._head = weights.head
        else:
            self._head = head if weights.token_ids is None else np.ascontiguousarray(head[weights.token_ids])
        self._rotary = rotary_table(spec.layers.rope, context)

    def extend(self, sequence: HeadSequence, tokens: Array, states: Array) -> Array:
        """Add entries: `tokens` [n] with the target's states of the tokens before them, [n, hidden] after its final
        norm or [n, taps * hidden]. Gives the features after them, [n, hidden]."""
        features = _project(states, self._weights.fuse) if self.spec.kind == "eagle3" else states
        out = self._advance(sequence, sequence.length, tokens, features)
        sequence.length += len(tokens)
        sequence.feature = out[-1]
        return out

    def truncate(self, sequence: HeadSequence, length: int) -> None:
        """Forget entries from `length` on; `extend` comes before the next draft."""
        sequence.length, sequence.feature = length, None

    def draft(self, sequence: HeadSequence, most: int) -> list[int]:
        """The likeliest tokens, one after the other. The sequence stays as it is."""
        if sequence.feature is None:
            return []
        feature, drafts = sequence.feature[None], [self.likeliest(sequence.feature[None])]
        while len(drafts) < most:
            position = sequence.length + len(drafts) - 1
            feature = self._advance(sequence, position, np.array(drafts[-1:]), feature)
            drafts.append(self.likeliest(feature))
        return drafts[:most]

    def likeliest(self, feature: Array) -> int:
        """The token of the highest logit, of features [1, hidden]."""
        place = int(self.logits(feature)[0].argmax())
        return place if self._weights.token_ids is None else int(self._weights.token_ids[place])

    def logits(self, features: Array) -> Array:
        """[n, hidden] -> [n, draft vocab]"""
        norm = self._weights.output_norm
        read = features if norm is None or self.spec.kind == "mtp" else _norm(features, norm, self.spec.layers.norm_eps)
        scores: Array = read @ self._head.T
        return scores

    def _advance(self, sequence: HeadSequence, first: int, tokens: Array, features: Array) -> Array:
        """Features after entries first .. first + n - 1, whose keys and values are written."""
        weights, eps = self._weights, self.spec.layers.norm_eps
        embedded = self._embedding[tokens]
        sequence.reserve(first + len(tokens))
        if self.spec.kind == "eagle3":
            return self._eagle3_layer(sequence, first, embedded, features)
        if weights.embedding_norm is not None and weights.feature_norm is not None:
            parts = _norm(features, weights.feature_norm, eps), _norm(embedded, weights.embedding_norm, eps)
        else:
            parts = embedded, features
        x = _project(np.concatenate(parts, axis=-1), weights.fuse)
        for number, layer in enumerate(weights.layers):
            normed = x if layer.input_norm is None else _norm(x, layer.input_norm, eps)
            x = x + self._attention(sequence, number, first, normed)
            x = x + self._mlp(layer, x)
        return x if weights.output_norm is None else _norm(x, weights.output_norm, eps)

    def _eagle3_layer(self, sequence: HeadSequence, first: int, embedded: Array, features: Array) -> Array:
        (layer,), eps = self._weights.layers, self.spec.layers.norm_eps
        assert layer.input_norm is not None
        assert layer.feature_norm is not None
        normed = _norm(features, layer.feature_norm, eps)
        both = np.concatenate((_norm(embedded, layer.input_norm, eps), normed), axis=-1)
        x = (normed if self.spec.norm_before_residual else features) + self._attention(sequence, 0, first, both)
        return x + self._mlp(layer, x)

    def _attention(self, sequence: HeadSequence, number: int, first: int, x: Array) -> Array:
        spec, layer, count = self.spec.layers, self._weights.layers[number], len(x)
        end = first + count
        rotary = self._rotary[first:end]
        q = _rotate(_project(x, layer.q).reshape(count, spec.num_heads, spec.head_dim), rotary)
        k = _rotate(_project(x, layer.k).reshape(count, spec.num_kv_heads, spec.head_dim), rotary)
        sequence.keys[number, first:end] = k
        sequence.values[number, first:end] = _project(x, layer.v).reshape(k.shape)
        keys, values = sequence.keys[number, :end], sequence.values[number, :end]
        grouped = q.reshape(count, spec.num_kv_heads, -1, spec.head_dim)
        scores = np.einsum("qhgd,khd->hgqk", grouped, keys) * np.float32(spec.attention_scale)
        scores[..., np.arange(end) > np.arange(first, end)[:, None]] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hgqk,khd->qhgd", shares, values)
        return _project(mixed.reshape(count, -1), layer.output)

    def _mlp(self, layer: LayerWeights, x: Array) -> Array:
        normed = _norm(x, layer.mlp_norm, self.spec.layers.norm_eps)
        return _project(silu(_project(normed, layer.gate)) * _project(normed, layer.up), layer.down)


def silu(x: Array) -> Array:
    with np.errstate(over="ignore"):  # exp of a very negative x: the quotient is 0, as it should be
        result: Array = x / (1 + np.exp(-x))
    return result


def _project(x: Array, projection: Projection) -> Array:
    y: Array = x @ projection.weight.T
    if projection.bias is not None:
        y += projection.bias
    return y


def _norm(x: Array, weight: Array, eps: float) -> Array:
    normed: Array = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps)) * weight
    return normed


def _rotate(x: Array, rotary: Array) -> Array:
    """x [n, heads, head_dim], rotary [n, 2, dim / 2]: x[i] with x[i + dim / 2]."""
    half = rotary.shape[-1]
    cos, sin = rotary[:, None, 0], rotary[:, None, 1]
    first, second = x[..., :half], x[..., half : 2 * half]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]), axis=-1)
