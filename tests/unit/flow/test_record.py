from array import array

from hypothesis import given
from hypothesis import strategies as st

from penstock.flow import record
from penstock.flow.record import Admission, Blocks, Finding, Preemption, StepRecord

WORDS = st.integers(0, 2**32 - 1)
TOTALS = st.integers(0, 2**64 - 1)  # grow for as long as the engine lives
SHORTS = st.integers(0, 60)
TIMES = st.floats(0, 1e9, allow_nan=False)
LET_IN = st.builds(
    Admission, WORDS, TIMES, WORDS, st.tuples(*[WORDS] * len(record.WAITS)), WORDS, WORDS,
    st.builds(Finding, st.integers(0, len(record.FINDINGS) - 1), WORDS, WORDS, WORDS),
)  # fmt: skip


@given(
    number=TOTALS,
    start=TIMES,
    spans=st.tuples(WORDS, WORDS, WORDS),
    waits=st.tuples(*[WORDS] * len(record.WAITS)),
    state=st.tuples(WORDS, TOTALS, st.integers(0, len(record.WAITS) - 1)),
    blocks=st.lists(st.builds(Blocks, *[WORDS] * 5), max_size=3),
    admissions=st.lists(LET_IN, max_size=3),
    preemptions=st.lists(st.builds(Preemption, WORDS, st.integers(0, len(record.WAITS) - 1)), max_size=3),
    rows=st.lists(st.tuples(WORDS, WORDS), max_size=20),
    names=st.none() | st.lists(st.sampled_from(["", "pirate", "Ünï/8-b"]), min_size=20, max_size=20),
)
def test_what_is_packed_comes_out_again(
    number, start, spans, waits, state, blocks, admissions, preemptions, rows, names
) -> None:
    adapters = [] if names is None else names[: len(rows)]
    flat = array("I", [value for row in rows for value in row])
    packed = record.pack(
        number, start, spans, waits, state, blocks,
        list(map(record.pack_admission, admissions)), preemptions, flat, adapters,
    )  # fmt: skip
    numbers, words = [row[0] for row in rows], [row[1] for row in rows]
    assert record.unpack(packed) == StepRecord(
        number, start, *spans, waits, *state, blocks, admissions, preemptions, numbers, words, adapters
    )

    unpacked = record.unpack(record.shift_times(packed, 64.0))
    assert unpacked == StepRecord(
        number, start + 64.0, *spans, waits, *state, blocks,
        [entry._replace(since=entry.since + 64.0) for entry in admissions], preemptions, numbers, words, adapters,
    )  # fmt: skip


def test_spans_that_no_word_holds_are_cut_not_wrapped() -> None:
    assert record.micros(1e9) == record.millis(1e9) == record.LONGEST
    assert record.micros(-1.0) == 0
    assert record.micros(0.0000015) == 2
    assert record.millis(0.0015) == 2


def test_the_word_of_a_row() -> None:
    assert (record.tokens_of(512), record.drafts_of(512)) == (512, (0, 0))
    assert (record.tokens_of(1 | record.DECODE), record.drafts_of(1 | record.DECODE)) == (1, (0, 0))
    word = record.decode_word(16, 9)
    assert (record.tokens_of(word), record.drafts_of(word)) == (17, (16, 9))
    assert word & record.DECODE
