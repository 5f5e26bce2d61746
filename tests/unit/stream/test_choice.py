import pytest

from penstock.flow import (
    Choice,
    Chunk,
    Delta,
    FinishReason,
    OutputFormat,
    ReasoningMarkers,
    SamplingParams,
    Timings,
    TokenLogprobs,
)
from penstock.stream.choice import ChoiceStream

ENDED = Timings(0.0, 0.0, 0.1, 0.2)


class Letters:
    """Token 97 is "a"; what is incomplete comes out at the flush."""

    def __init__(self, leftover: str = "") -> None:
        self.leftover = leftover

    fixed_texts = None
    holds_text = False

    def push(self, token: int) -> str:
        return chr(token)

    def flush(self) -> str:
        return self.leftover


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_text_and_tokens_of_an_answer_that_ends_by_itself() -> None:
    answer = ChoiceStream(0, SamplingParams(), Letters("�"))
    assert answer.push(Delta(id="x/0", tokens=ids("he"))).text == "he"
    last = answer.push(Delta(id="x/0", tokens=[*ids("y"), 2], finish=FinishReason.END, timings=ENDED))
    assert (last.text, last.finish, last.tokens) == ("y�", FinishReason.END, [*ids("y"), 2])
    choice = answer.choice()
    assert (choice.text, choice.tokens, choice.timings) == ("hey�", [*ids("hey"), 2], ENDED)


def test_a_stop_token_is_counted_but_not_shown() -> None:
    answer = ChoiceStream(0, SamplingParams(stop_tokens=(ord("!"),)), Letters())
    chunk = answer.push(Delta(id="x/0", tokens=ids("ok!"), finish=FinishReason.STOP_TOKEN, timings=ENDED))
    assert (chunk.text, chunk.tokens, chunk.stop) == ("ok", ids("ok!"), ord("!"))


def test_or_is_shown_where_that_is_asked_for() -> None:
    params = SamplingParams(stop_tokens=(ord("!"),), include_stop_str_in_output=True)
    for finish, stop in ((FinishReason.STOP_TOKEN, ord("!")), (FinishReason.END, None)):
        chunk = ChoiceStream(0, params, Letters("�")).push(
            Delta(id="x/0", tokens=ids("ok!"), finish=finish, timings=ENDED)
        )
        assert (chunk.text, chunk.tokens, chunk.stop, chunk.finish) == ("ok!�", ids("ok!"), stop, finish)


def test_so_is_a_stop_string() -> None:
    answer = ChoiceStream(0, SamplingParams(stop=("END",), include_stop_str_in_output=True), Letters())
    texts = [answer.push(Delta(id="x/0", tokens=ids(text))).text for text in ("abE", "N", "Dxyz")]
    assert (texts, answer.tokens) == (["ab", "", "END"], ids("abEND"))
    assert (answer.finish, answer.stop) == (FinishReason.STOP_STRING, "END")


def test_tokens_behind_a_stop_string_are_surplus() -> None:
    answer = ChoiceStream(0, SamplingParams(stop=("END",), logprobs=0), Letters())
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
    answer = ChoiceStream(0, SamplingParams(stop=("END",)), Letters())
    assert answer.push(Delta(id="x/0", tokens=ids("aEN"))).text == "a"
    last = answer.push(Delta(id="x/0", finish=FinishReason.LENGTH, timings=ENDED))
    assert (last.text, last.finish) == ("EN", FinishReason.LENGTH)


def test_a_stop_string_completed_by_the_last_flush() -> None:
    answer = ChoiceStream(0, SamplingParams(stop=("é",)), Letters("é"))
    answer.push(Delta(id="x/0", tokens=ids("a")))
    last = answer.push(Delta(id="x/0", finish=FinishReason.LENGTH, timings=ENDED))
    assert (last.text, last.finish) == ("", FinishReason.STOP_STRING)


# --- reasoning and calls

TOOLS = OutputFormat(tool_calls="hermes", reasoning=ReasoningMarkers("<think>", "</think>"))
CALL = '<tool_call>{"name": "f", "arguments": {"a": "END"}}</tool_call>'


def answered(text: str, params: SamplingParams, finish: FinishReason = FinishReason.END) -> tuple[list[Chunk], Choice]:
    """Token by token; the last token ends it and has no text."""
    answer = ChoiceStream(0, params, Letters(), TOOLS)
    deltas = [Delta(id="x/0", tokens=[token]) for token in ids(text)]
    deltas.append(Delta(id="x/0", tokens=[2], finish=finish, timings=ENDED))
    chunks = [chunk for delta in deltas if (chunk := answer.push(delta)) is not None]
    return chunks, answer.choice()


def test_behind_its_reasoning_an_answer_without_calls_takes_the_short_way() -> None:
    """Nothing is held back or taken apart from there on; what is at the end is."""
    answer = ChoiceStream(
        0, SamplingParams(), Letters("�"), OutputFormat(reasoning=ReasoningMarkers("<think>", "</think>"))
    )
    pieces = []
    for letter in "<think>hm</think>\n A  b \n":
        chunk = answer.push(Delta(id="x/0", tokens=ids(letter)))
        assert chunk is not None
        pieces.append((chunk.reasoning, chunk.text))
        if letter == "A":
            answer.parser = None  # the short way does not ask it
    assert ["".join(part) for part in zip(*pieces, strict=True)] == ["hm", "A  b \n"]
    assert answer.push(Delta(id="x/0", tokens=[2], finish=FinishReason.END, timings=ENDED)).text == "�"
    assert (answer.choice().reasoning, answer.choice().text) == ("hm", "A  b \n�")


@pytest.mark.parametrize("params", [SamplingParams(stop=("END",)), SamplingParams(logprobs=0)])
def test_but_not_past_stop_strings_and_log_probabilities(params: SamplingParams) -> None:
    answer = ChoiceStream(0, params, Letters(), OutputFormat(reasoning=ReasoningMarkers("<think>", "</think>")))
    found = TokenLogprobs(0, -0.5, 1, [])
    for letter in "a END b":
        answer.push(Delta(id="x/0", tokens=ids(letter), logprobs=None if params.logprobs is None else [found]))
    assert (answer.finish, "".join(answer.text)) == (
        (FinishReason.STOP_STRING, "a ") if params.stop else (None, "a END b")
    )
    assert answer.logprobs == (None if params.logprobs is None else [found] * 7)


def test_the_parts_of_an_answer_are_those_of_its_chunks() -> None:
    text = f"<think>hm END\n</think>\n\nWell.\n{CALL}\n{CALL}"
    chunks, choice = answered(text, SamplingParams())

    assert (choice.text, choice.reasoning) == ("Well.", "hm END")
    assert [(call.name, call.arguments) for call in choice.calls] == [("f", '{"a": "END"}')] * 2
    assert len({call.id for call in choice.calls}) == 2
    assert "".join(chunk.text for chunk in chunks) == choice.text
    assert "".join(chunk.reasoning for chunk in chunks) == choice.reasoning
    pieces = [piece for chunk in chunks for piece in chunk.calls]
    assert "".join(piece.arguments for piece in pieces if piece.index == 1) == choice.calls[1].arguments
    assert [token for chunk in chunks for token in chunk.tokens] == choice.tokens == [*ids(text), 2]
    assert choice.reasoning_tokens == len("hm END\n</think>")


def test_stop_strings_count_in_the_text_alone() -> None:
    thought = "<think>not here: END</think>"
    _, choice = answered(f"{thought}{CALL}so END it", SamplingParams(stop=("END",)))

    assert (choice.text, choice.finish, choice.stop) == ("so ", FinishReason.STOP_STRING, "END")
    assert choice.reasoning == "not here: END"
    assert choice.calls[0].arguments == '{"a": "END"}'
    assert choice.tokens == ids(f"{thought}{CALL}so END")


@pytest.mark.parametrize("behind", ["\n\nmore", CALL])
def test_white_space_that_ends_an_answer_is_not_waited_with(behind: str) -> None:
    """Though it might only set a call apart."""
    _, choice = answered(f"Hi\n\n{behind}", SamplingParams(stop=("\n\n",)))

    assert (choice.text, choice.finish, choice.calls) == ("Hi", FinishReason.STOP_STRING, ())
    assert choice.tokens == ids("Hi\n\n")
    _, choice = answered(f"Hi\n{CALL}", SamplingParams(stop=("\n\n",)))
    assert (choice.text, len(choice.calls)) == ("Hi\n", 1)


def test_no_stop_string_reaches_over_a_call() -> None:
    chunks, choice = answered(f"E{CALL}ND", SamplingParams(stop=("END",)))

    assert (choice.text, choice.finish) == ("END", FinishReason.END)
    shown = [(chunk.text, bool(chunk.calls)) for chunk in chunks if chunk.text or chunk.calls]
    assert shown[0] == ("E", True)  # held back no longer than to the call


def test_a_call_that_is_cut_short() -> None:
    _, choice = answered(
        '<tool_call>{"name": "f", "arguments": {"a": "E', SamplingParams(stop=("END",)), FinishReason.LENGTH
    )

    assert choice.finish is FinishReason.LENGTH
    assert choice.calls[0].arguments.startswith('{"a": "E')
    assert choice.text == ""


def test_a_family_that_does_not_reason_says_none() -> None:
    answer = ChoiceStream(0, SamplingParams(), Letters())
    answer.push(Delta(id="x/0", tokens=ids(f"<think>x</think>{CALL}"), finish=FinishReason.LENGTH, timings=ENDED))

    choice = answer.choice()
    assert (choice.reasoning, choice.calls, choice.reasoning_tokens) == (None, (), 0)
    assert choice.text == f"<think>x</think>{CALL}"
