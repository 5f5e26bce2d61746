from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.limits.sliding_window import WINDOW_US, SlidingWindow

GAPS = st.one_of(st.integers(0, 3), st.integers(0, WINDOW_US // 3), st.sampled_from([WINDOW_US - 1, WINDOW_US]))


@given(st.lists(st.tuples(GAPS, st.integers(0, 9), st.integers(0, 5)), max_size=40), GAPS)
def test_totals_and_waits_are_those_of_a_plain_sum(steps: list[tuple[int, int, int]], last_gap: int) -> None:
    """`remove`: which of the last entries is taken back, 0: none."""
    window, entries, now = SlidingWindow(), list[tuple[int, int]](), 1000
    for gap, amount, remove in [*steps, (last_gap, 0, 0)]:
        now += gap
        expected = sum(value for at, value in entries if now - WINDOW_US < at <= now)
        assert window.total(now) == expected
        for part in range(1, expected + 1):
            wait = window.wait_us(part, now)
            assert freed(entries, now, wait) >= part > freed(entries, now, wait - 1)
        left = window.reset_us(now)
        assert not [at for at, _ in entries if now + left - WINDOW_US < at]
        window.add(amount, now)
        entries.append((now, amount))
        if 0 < remove <= len(entries) and entries[-remove][0] > now - WINDOW_US:
            at, value = entries.pop(-remove)
            window.remove(value, at)


def freed(entries: list[tuple[int, int]], now: int, wait: int) -> int:
    return sum(value for at, value in entries if now - WINDOW_US < at <= now + wait - WINDOW_US)


def test_memory_of_old_entries_is_given_back() -> None:
    window = SlidingWindow()
    for second in range(10_000):
        window.add(1, second * 1_000_000)
        assert window.total(second * 1_000_000) == min(60, second + 1)
    assert len(window._times) < 4096
    assert window.total(20_000 * 1_000_000) == 0
    assert len(window._times) == 0


def test_also_where_nobody_asks_for_the_total() -> None:
    """Of a key without limits."""
    window = SlidingWindow()
    for second in range(10_000):
        window.add(1, second * 1_000_000)
    assert len(window._times) < 4096
