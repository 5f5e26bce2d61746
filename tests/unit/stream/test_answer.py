from penstock.flow import Delta, FinishReason, SamplingParams, Timings, TokenLogprobs
from penstock.stream.answer import Answer

ENDED = Timings(0.0, 0.0, 0.1, 0.2)


class Letters:
    """Token 97 is "a"; what is incomplete comes out at the flush."""

    def __init__(self, leftover: str = "") -> None:
        self.leftover = leftover

    def push(self, token: int) -> str:
        return chr(token)

    def flush(self) -> str:
        return self.leftover


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_text_and_tokens_of_an_answer_that_ends_by_itself() -> None:
    answer = Answer(0, SamplingParams(), Letters("�"))
    assert answer.push(Delta(id="x/0", tokens=ids("he"))).text == "he"
    last = answer.push(Delta(id="x/0", tokens=[*ids("y"), 2], finish=FinishReason.END, timings=ENDED))
    assert (last.text, last.finish, last.tokens) == ("y�", FinishReason.END, [*ids("y"), 2])
    choice = answer.choice()
    assert (choice.text, choice.tokens, choice.timings) == ("hey�", [*ids("hey"), 2], ENDED)


def test_a_stop_token_is_counted_but_not_shown() -> None:
    answer = Answer(0, SamplingParams(stop_tokens=(ord("!"),)), Letters())
    chunk = answer.push(Delta(id="x/0", tokens=ids("ok!"), finish=FinishReason.STOP_TOKEN, timings=ENDED))
    assert (chunk.text, chunk.tokens, chunk.stop) == ("ok", ids("ok!"), ord("!"))


def test_tokens_behind_a_stop_string_are_surplus() -> None:
    answer = Answer(0, SamplingParams(stop=("END",), logprobs=0), Letters())
    logprobs = [TokenLogprobs(token, -1.0, 1, []) for token in ids("abENDxyz")]
    chunk = answer.push(Delta(id="x/0", tokens=ids("abENDxyz"), logprobs=logprobs))
    assert (chunk.text, chunk.finish, chunk.stop) == ("ab", FinishReason.STOP_STRING, "END")
    assert chunk.tokens == ids("abEND")
    assert len(chunk.logprobs) == 5
    assert not answer.done
    assert answer.push(Delta(id="x/0", tokens=ids("more"))) is None
    assert answer.push(Delta(id="x/0", finish=FinishReason.STOP_STRING, timings=ENDED)) is None
    assert answer.done
    assert answer.choice().tokens == ids("abEND")


def test_held_back_text_comes_out_when_the_sequence_ends_otherwise() -> None:
    answer = Answer(0, SamplingParams(stop=("END",)), Letters())
    assert answer.push(Delta(id="x/0", tokens=ids("aEN"))).text == "a"
    last = answer.push(Delta(id="x/0", finish=FinishReason.LENGTH, timings=ENDED))
    assert (last.text, last.finish) == ("EN", FinishReason.LENGTH)


def test_a_stop_string_completed_by_the_last_flush() -> None:
    answer = Answer(0, SamplingParams(stop=("é",)), Letters("é"))
    answer.push(Delta(id="x/0", tokens=ids("a")))
    last = answer.push(Delta(id="x/0", finish=FinishReason.LENGTH, timings=ENDED))
    assert (last.text, last.finish) == ("", FinishReason.STOP_STRING)
