"""What the prefix cache of a replica holds, as far as the frontend can know it: the block keys of prompts that it sent
there, in a bounded LRU order like the replica's own.

The engine does not report its cache: that would be a message per block. Instead each answer corrects the tracker: its
first output says how many tokens were found cached. Less than predicted means that the replica has evicted more than
the tracker assumes, so the tracker holds less from then on, and more again while predictions are right. A replica whose
predictions fail often is not trusted until they hold again. One that restarts begins with nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from penstock.flow import Adapter
from penstock.flow.prefix import block_key, pack_tokens, root_key

MAX_KEYS = 1024  # of one prompt: hashing more would cost milliseconds
LEARNING = 0.1  # weight of the latest prediction
TRUSTED = 0.5  # of predicted tokens must have been found, by moving averages
SHRINK, GROW = 0.95, 1.01  # of the number of keys held, after a wrong and after a right prediction


def prompt_keys(
    secret: bytes,
    tenant: str,
    salt: str,
    tokens: Sequence[int],
    block_size: int,
    adapter: Adapter | None = None,
) -> list[bytes]:
    """The keys of the full blocks of a prompt, as the engine computes them."""
    count = min(len(tokens) // block_size, MAX_KEYS)
    packed = pack_tokens(tokens[: count * block_size])
    width = len(packed) // count if count else 0
    keys, parent = [], root_key(secret, tenant, salt, adapter)
    for place in range(count):
        parent = block_key(parent, packed[place * width : (place + 1) * width])
        keys.append(parent)
    return keys


class PrefixTracker:
    """Of one replica. Costs one dictionary entry per block."""

    def __init__(self, capacity: int, block_size: int) -> None:
        """`capacity` is in blocks: what the replica's cache holds."""
        self.block_size = block_size
        self._capacity = capacity
        self._limit = float(capacity)  # keys held now
        self._keys: OrderedDict[bytes, None] = OrderedDict()  # least recently used first
        self._predicted = self._found = 0.0  # tokens, moving averages

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def trusted(self) -> bool:
        """Whether its predictions hold. Without any there is nothing to distrust."""
        return self._found >= TRUSTED * self._predicted

    def cached_tokens(self, keys: Sequence[bytes], prompt_tokens: int) -> int:
        """The longest prefix of a prompt that the replica is expected to have. The last token is always computed."""
        known, count = self._keys, min(len(keys), (prompt_tokens - 1) // self.block_size)
        for place in range(count):
            if keys[place] not in known:
                return place * self.block_size
        return max(count, 0) * self.block_size

    def add(self, keys: Sequence[bytes]) -> None:
        """The replica is about to compute these. The last ones count as older, since it evicts them first."""
        known = self._keys
        for key in reversed(keys):
            known[key] = None
            known.move_to_end(key)
        while len(known) > self._limit:
            known.popitem(last=False)

    def correct(self, predicted: int, found: int) -> None:
        """Of a prompt's tokens, `predicted` were expected to be cached, and `found` were."""
        if predicted:
            self._predicted += LEARNING * (predicted - self._predicted)
            self._found += LEARNING * (min(found, predicted) - self._found)
            factor = SHRINK if found < predicted else GROW
            self._limit = min(max(factor * self._limit, 1.0), float(self._capacity))

    def clear(self) -> None:
        """The replica has restarted, or is asleep."""
        self._keys.clear()
        self._limit = float(self._capacity)
        self._predicted = self._found = 0.0
