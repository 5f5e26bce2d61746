"""Which KV blocks have the keys and values that a draft model computed, and of which tokens.

A block's content is named by a hash chain over all tokens up to its end. So it does not matter how a sequence came by
a block (new, from the prefix cache, after a preemption): what was computed there before counts if the tokens are the
same.
"""

from __future__ import annotations

from penstock.kernels.arrays import Array


class FilledBlocks:
    def __init__(self, tokens: Array, table: Array, block_size: int) -> None:
        """`tokens` [slots, context] and `table` [slots, blocks]: of the running sequences."""
        self._tokens, self._table, self._size = tokens, table, block_size
        self._content: dict[int, int] = {}  # by block id, of whole blocks
        self._keys: dict[int, list[int]] = {}  # by slot: of its known whole blocks
        self._computed: dict[int, int] = {}  # by slot, as far as it is known

    def admit(self, slot: int) -> None:
        """Another sequence gets the slot."""
        self._keys[slot] = []
        self._computed.pop(slot, None)

    def forget(self) -> None:
        """The memory of all blocks was given back. No sequence runs."""
        self._content.clear()

    def computed(self, slot: int, known: int) -> int:
        """How many of the first `known` tokens, which are final, have their keys and values."""
        keys, size = self._keys[slot], self._size
        for number in range(len(keys), known // size):
            own = self._tokens[slot, number * size : (number + 1) * size].tobytes()
            keys.append(hash((keys[-1] if keys else 0, own)))
        blocks: list[int] = self._table[slot, : known // size].tolist()
        if slot not in self._computed:
            pairs = enumerate(zip(blocks, keys, strict=True))
            same = next((number for number, (block, key) in pairs if self._content.get(block) != key), len(blocks))
            self._computed[slot] = same * size
        computed = min(self._computed[slot], known)
        for number in reversed(range(computed // size)):  # those that were filled since the last call
            if self._content.get(blocks[number]) == keys[number]:
                break
            self._content[blocks[number]] = keys[number]
        return computed

    def note(self, slot: int, computed: int) -> None:
        """Keys and values of this many tokens are there, the last of which may be drafts."""
        self._computed[slot] = computed

    def overwrite(self, slot: int, start: int, end: int) -> None:
        """These positions are about to be written."""
        for block in self._table[slot, start // self._size : (end - 1) // self._size + 1].tolist():
            self._content.pop(block, None)
