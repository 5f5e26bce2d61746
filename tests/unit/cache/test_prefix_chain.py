from __future__ import annotations

from penstock.cache.prefix_chain import PrefixChain


def keys(tokens: list[int], salt: str = "", block_size: int = 4) -> list[bytes]:
    chain = PrefixChain(salt.encode(), block_size)
    chain.grow(tokens, len(tokens) // block_size)
    return [link.key for link in chain.links]


def test_only_full_blocks_have_keys() -> None:
    assert [len(keys(list(range(n)))) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_equal_histories_have_equal_keys_and_differ_from_the_first_difference_on() -> None:
    one, two = keys([1] * 16), keys([1] * 9 + [2] + [1] * 6)
    assert one[:2] == two[:2]
    assert not set(one[2:]) & set(two)
    assert len(set(one)) == 4, "equal tokens at different places are different blocks"


def test_salts_share_nothing() -> None:
    assert not set(keys([1] * 16, "one")) & set(keys([1] * 16, "two"))


def test_growing_piece_by_piece_gives_the_same_chain() -> None:
    tokens = [t * 37 % 100_000 for t in range(22)]
    chain = PrefixChain(b"salt", 4)
    for length in range(len(tokens) + 1):
        chain.grow(tokens[:length], length // 4)
        chain.grow(tokens[:length], 0)
    assert [link.key for link in chain.links] == keys(tokens, "salt")
    assert [token for link in chain.links for token in link.tokens] == tokens[:20]
    assert [link.parent for link in chain.links[1:]] == [link.key for link in chain.links[:-1]]


def test_twins_share_what_they_begin_with_and_nothing_else() -> None:
    prompt = list(range(10))
    chain = PrefixChain(b"salt", 4)
    chain.grow([*prompt, 10, 11], 3)
    twin = chain.share(prompt)
    assert [link.key for link in twin.links] == keys(prompt, "salt")

    twin.grow([*prompt, 20, 21, 22, 23], 3)
    assert [link.key for link in twin.links] == keys([*prompt, 20, 21], "salt")
    assert [link.key for link in chain.links] == keys([*prompt, 10, 11], "salt")
