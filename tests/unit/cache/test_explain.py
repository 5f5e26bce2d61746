"""What the cache says of itself: the exact token at which a prompt leaves what is or was cached, and nobody else's."""

from random import Random

import pytest

from penstock.cache import CacheManager, EvictionHistory, PrefixChain
from penstock.cache.explain import RunningPrefixes, explain
from penstock.flow import record
from penstock.flow.prefix import pack_tokens
from penstock.flow.record import FINDINGS, Admission, Finding
from penstock.store.spec import CacheGroup

SIZE = 4


class Cache:
    """A cache that sequences pass through, one after the other, and a clock."""

    def __init__(self, blocks: int = 1000, limit: int = 1000) -> None:
        self.now = 0.0
        self.history = EvictionHistory(lambda: self.now, limit)
        self.manager = CacheManager([CacheGroup(0, (0,))], [blocks + 1], SIZE, True, self.history)

    def run(self, tokens: list[int], salt: str = "") -> None:
        chain = PrefixChain(salt.encode(), SIZE)
        hit = self.manager.lookup_prefix(chain, tokens)
        table = self.manager.allocate(hit, len(tokens), len(tokens), 0)
        assert table is not None
        self.manager.advance(table, chain, tokens, len(tokens) - 1)
        self.history.end_sequence(chain, tokens, len(tokens) - 1)
        self.manager.release(table)
        self.manager.check_integrity()

    def explain(
        self, tokens: list[int], salt: str = "", running: list[tuple[PrefixChain, list[int]]] | None = None
    ) -> Finding:
        """`running`: sequences that have settled nothing yet."""
        chain, kin = PrefixChain(salt.encode(), SIZE), RunningPrefixes()
        for other, others_tokens in running or []:
            kin.add(other, others_tokens, 0)
        hit = self.manager.lookup_prefix(chain, tokens)
        return explain(chain, tokens, hit.tokens, self.history, lambda: kin)


def reason(finding: Finding) -> str:
    return FINDINGS[finding.reason]


def common(first: list[int], second: list[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def test_names_the_exact_token_at_which_a_prompt_diverged() -> None:
    cache = Cache()
    cache.run(list(range(40)))
    for at in range(1, 38):
        prompt = [*range(at), 999, *range(at + 1, 45)]
        assert cache.explain(prompt) == Finding(record.DIVERGED, at)


def test_agrees_with_a_look_at_every_sequence_there_was() -> None:
    random = Random(3)
    cache = Cache()
    seen: list[list[int]] = []
    for _ in range(300):
        base = random.choice(seen)[: random.randrange(1, 40)] if seen and random.random() < 0.8 else []
        tokens = base + [random.randrange(3) for _ in range(random.randrange(2, 30))]
        finding = cache.explain(tokens)
        if len(tokens) > SIZE:
            expected = max((common(tokens, other) for other in seen), default=0)
            if reason(finding) == "full":
                assert expected >= finding.matched == (len(tokens) - 1) // SIZE * SIZE
            else:
                assert finding.matched == expected, (tokens, finding)
        cache.run(tokens)
        seen.append(tokens)


def test_tells_what_was_evicted_and_when() -> None:
    cache = Cache(blocks=12)
    cache.run(list(range(24)))
    cache.now = 10.0
    cache.run(list(range(100, 148)))  # takes all blocks
    cache.now = 12.5
    finding = cache.explain([*range(22), 999, 999])
    assert reason(finding) == "evicted"
    assert finding.matched == 22
    assert finding.evicted == 20
    assert finding.evicted_ms == 2500
    assert cache.history.evictions == 5


def test_an_eviction_that_nobody_remembers_when_is_still_packed() -> None:
    cache = Cache(blocks=12)
    cache.run(list(range(24)))
    cache.run(list(range(100, 148)))
    cache.now = 1e8  # three years
    finding = cache.explain([*range(22), 999, 999])
    assert finding.evicted_ms == record.LONGEST
    record.pack_admission(Admission(1, 0.0, 0, (0,) * len(record.WAITS), 0, 0, finding))


def test_of_many_that_begin_alike_only_the_nearest_are_looked_at() -> None:
    cache = Cache()
    for token in range(200):
        cache.run([7, 7, 7, token, 1, 2])
    chain = PrefixChain(b"", SIZE)
    looked_at = cache.history.neighbours(chain.root, pack_tokens([7, 7, 7, 100]))
    assert {link.tokens[3] for link in looked_at} == {99, 100}
    assert cache.explain([7, 7, 7, 500, 1, 2]) == Finding(record.DIVERGED, 3)
    assert cache.explain([8, 7, 7, 7, 1, 2]) == Finding(record.NOTHING_ALIKE)


def test_a_prompt_that_goes_on_where_the_cached_one_ends_has_not_diverged() -> None:
    cache = Cache()
    cache.run(list(range(18)))
    assert cache.explain(list(range(30))) == Finding(record.EXTENDS, 18)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (list(range(25)), "full"),
        ([1, 2, 3, 4], "too_short"),
        ([500] * 20, "nothing_alike"),
    ],
)
def test_other_reasons(prompt: list[int], expected: str) -> None:
    cache = Cache()
    cache.run(list(range(40)))
    assert reason(cache.explain(prompt)) == expected


def test_what_runs_now_is_as_good_as_cached() -> None:
    cache = Cache()
    chain = PrefixChain(b"", SIZE)
    tokens = list(range(30))
    cache.manager.lookup_prefix(chain, tokens)
    finding = cache.explain([*range(3), 999, *range(20)], running=[(chain, tokens)])
    assert (reason(finding), finding.matched) == ("diverged", 3)


def test_of_many_that_run_only_the_nearest_are_looked_at() -> None:
    cache, kin = Cache(), RunningPrefixes()
    chains = [PrefixChain(b"", SIZE) for _ in range(200)]
    for token, chain in enumerate(chains):
        cache.manager.lookup_prefix(chain, [7, 7, 7, 7, 8, token, 1, 2])
        kin.add(chain, [7, 7, 7, 7, 8, token, 1, 2], settled=SIZE + 1)
    assert kin.neighbours(chains[0].root, pack_tokens([7, 7, 7, 7])) == []  # that block has been settled
    nearest = kin.neighbours(chains[0].links[0].key, pack_tokens([8, 50, 9]))
    assert nearest == [pack_tokens([8, 50, 1, 2]), pack_tokens([8, 51, 1, 2])]


def test_one_tenant_learns_nothing_of_anothers() -> None:
    cache = Cache()
    cache.run(list(range(40)), salt="a")
    running = PrefixChain(b"a", SIZE)
    cache.manager.lookup_prefix(running, list(range(40)))
    for prompt in (list(range(40)), [*range(10), 999, *range(20)]):
        assert cache.explain(prompt, salt="b", running=[(running, list(range(40)))]) == Finding(record.NOTHING_ALIKE)
        assert cache.explain(prompt) == Finding(record.NOTHING_ALIKE)
        assert cache.explain(prompt, salt="a").matched >= 10


def test_memory_of_what_is_gone_is_bounded() -> None:
    cache = Cache(blocks=10, limit=25)
    random = Random(1)
    for _ in range(200):
        cache.run([random.randrange(1000) for _ in range(random.randrange(5, 38))])
        assert len(cache.history) <= 25
        assert len(cache.history.recent) <= 64
    assert cache.history.evictions > 500


def test_what_should_not_have_been_cached_is_not_recalled() -> None:
    cache = Cache()
    chain, tokens = PrefixChain(b"", SIZE), list(range(20))
    table = cache.manager.allocate(cache.manager.lookup_prefix(chain, tokens), 20, 20, 0)
    assert table is not None
    cache.manager.advance(table, chain, tokens, 20)
    cache.manager.uncache(table, chain, 6)
    cache.manager.check_integrity()
    assert cache.explain([*range(20), 1, 2]).matched == 4
