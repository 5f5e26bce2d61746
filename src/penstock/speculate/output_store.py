"""Recent outputs, kept by scope: a sequence is compared with those of its own tenant and salt, and no others. Bounded
in tokens and in scopes, of which the least recently used goes first.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from penstock.kernels.arrays import Array
from penstock.speculate.ngram_index import NgramIndex

MOST_TOKENS = 8192  # of a scope: about 2 MB
MOST_SCOPES = 16
_END = -1  # of an output: no token


class ScopeOutputs:
    """The outputs of one scope, one behind the other."""

    def __init__(self) -> None:
        self._tokens: Array = np.empty(MOST_TOKENS, dtype=np.int32)
        self._size = 0
        self._index = NgramIndex()

    def add(self, output: Array) -> None:
        output = output[: MOST_TOKENS // 2 - 1]
        if self._size + len(output) + 1 > MOST_TOKENS:
            self._drop_older_half()
        end = self._size + len(output)
        self._tokens[self._size : end] = output
        self._tokens[end] = _END
        self._size = end + 1
        self._index.extend(self._tokens, self._size)

    def find(self, known: Array, most: int) -> tuple[list[int], int] | None:
        found = self._index.find(known, self._tokens)
        if found is None:
            return None
        position, same = found
        tokens: list[int] = self._tokens[position : min(position + most, self._size)].tolist()
        if _END in tokens:
            del tokens[tokens.index(_END) :]
        return (tokens, same) if tokens else None

    def _drop_older_half(self) -> None:
        kept = self._tokens[self._size - MOST_TOKENS // 2 : self._size].copy()
        self._tokens[: len(kept)] = kept
        self._size, self._index = len(kept), NgramIndex()
        self._index.extend(self._tokens, self._size)


class OutputStore:
    def __init__(self) -> None:
        self._scopes: OrderedDict[bytes, ScopeOutputs] = OrderedDict()

    def add(self, scope: bytes, output: Array) -> None:
        self._scopes.setdefault(scope, ScopeOutputs()).add(output)
        self._scopes.move_to_end(scope)
        if len(self._scopes) > MOST_SCOPES:
            self._scopes.popitem(last=False)

    def find(self, scope: bytes, known: Array, most: int) -> tuple[list[int], int] | None:
        """Up to `most` tokens that followed the last ones of `known` in an output of the same scope, and how many were
        the same."""
        outputs = self._scopes.get(scope)
        return None if outputs is None else outputs.find(known, most)
