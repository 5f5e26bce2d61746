import msgspec

from penstock.flow import Delta, FinishReason, Frame
from penstock.flow.messages import FromEngine


def test_single_tokens_of_a_frame_are_packed_and_everything_else_stays() -> None:
    deltas = [
        Delta(id="a/0", tokens=[7], number=1),
        Delta(id="b/0", tokens=[8], cached_tokens=3),  # the first token of a sequence has no number
        Delta(id="c/0", tokens=[9], number=4_000_000_000),
        Delta(id="d/0", tokens=[5], number=2, finish=FinishReason.LENGTH),
    ]
    packed = Frame(deltas, b"record").packed()
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=FromEngine)
    assert isinstance(read, Frame)
    assert read.deltas == [deltas[1], deltas[3]]
    assert read.record == b"record"
    numbers, tokens = read.pairs()
    assert [*zip(numbers, tokens, strict=True)] == [(1, 7), (4_000_000_000, 9)]
