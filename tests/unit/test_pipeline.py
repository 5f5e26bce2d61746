import pytest

from helpers.model_specs import small_spec
from penstock.errors import ContextOverflow, EngineDied, InvalidRequest
from penstock.flow import Cancel, Delta, FinishReason, Request, SamplingParams, Timings, TokenLogprobs
from penstock.pipeline import Pipeline
from penstock.prompt.template import ChatTemplate
from penstock.stream.active_request import ActiveRequest

SPEC = small_spec(name="letters", vocab_size=128, context=32, end_tokens=(0,))
ENDED = Timings(0.0, 0.0, 0.1, 0.2)


class Letters:
    """A tokenizer whose tokens are ASCII characters."""

    vocab_size = 128
    longest = 2  # it has none of these, though
    fixed_texts = None
    holds_text = False

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        if not text.isascii():
            raise InvalidRequest("the text is not ASCII")
        return ([1] if add_special else []) + [ord(letter) for letter in text]

    def decode(self, tokens: list[int], *, skip_special: bool = True) -> str:
        return "".join(map(chr, tokens))

    def text_stream(self, prompt: list[int], *, skip_special: bool = True) -> "Letters":
        return self

    def push(self, token: int) -> str:
        return chr(token)

    def flush(self) -> str:
        return ""


TEMPLATE = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", {})
PIPELINE = Pipeline(SPEC, Letters(), TEMPLATE, context=32, clock=lambda: 5.0)


def accept(**fields: object) -> ActiveRequest:
    return PIPELINE.accept(Request(id="r", **{"params": SamplingParams(max_tokens=4), **fields}))


def test_priority_is_refused_where_nobody_heeds_it() -> None:
    first_come = Pipeline(SPEC, Letters(), TEMPLATE, context=32, by_priority=False)
    assert accept(text="hi", priority=3).submits[0].priority == 3
    assert first_come.accept(Request(id="r", params=SamplingParams(max_tokens=4), text="hi", priority=0))
    with pytest.raises(InvalidRequest, match="no effect") as refused:
        first_come.accept(Request(id="r", params=SamplingParams(), text="hi", priority=3))
    assert refused.value.param == "priority"


def test_tier_and_weight_of_the_tenant_reach_the_engine() -> None:
    assert [(s.tier, s.weight) for s in accept(text="hi", tier=2, weight=0.5).submits] == [(2, 0.5)]
    assert [(s.tier, s.weight) for s in accept(text="hi").submits] == [(1, 1.0)]


def test_text_gets_special_tokens_and_a_template_writes_its_own() -> None:
    assert accept(text="hi").submits[0].tokens == [1, *b"hi"]
    assert accept(messages=[{"role": "user", "content": "hi"}]).submits[0].tokens == [*b"<user>hi"]
    assert accept(tokens=[5, 6]).submits[0].tokens == [5, 6]


def test_choices_share_the_seed_and_differ_by_their_number() -> None:
    params = SamplingParams(n=3, max_tokens=4, prompt_logprobs=1, timeout_s=2.0)
    submits = accept(text="hi", params=params).submits
    assert [submit.id for submit in submits] == ["r/0", "r/1", "r/2"]
    assert [submit.choice for submit in submits] == [0, 1, 2]
    assert len({submit.seed for submit in submits}) == 1
    assert [submit.params.prompt_logprobs for submit in submits] == [1, None, None]
    assert {submit.deadline_s for submit in submits} == {2.0}


def test_ignore_eos_leaves_no_end_token() -> None:
    assert accept(text="hi").submits[0].end_tokens == (0,)
    assert accept(text="hi", params=SamplingParams(max_tokens=4, ignore_eos=True)).submits[0].end_tokens == ()


def test_without_max_tokens_a_request_may_fill_the_context() -> None:
    assert accept(tokens=[5] * 10, params=SamplingParams(max_tokens=None)).submits[0].max_output == 22


@pytest.mark.parametrize(
    ("prompt", "params", "most"),
    [
        (10, {"max_tokens": None}, 6),
        (10, {"max_tokens": 20}, 20),  # a limit of its own counts
        (10, {"max_tokens": None, "min_tokens": 9}, 9),
        (30, {"max_tokens": None}, 2),
    ],
)
def test_or_as_much_as_the_server_has_for_it(prompt: int, params: dict[str, int | None], most: int) -> None:
    capped = Pipeline(SPEC, Letters(), TEMPLATE, context=32, default_max_tokens=6)
    asked = Request(id="r", params=SamplingParams(**params), tokens=[5] * prompt)
    assert capped.accept(asked).submits[0].max_output == most


@pytest.mark.parametrize(
    ("keep", "fields", "left"),
    [
        (3, {}, [8, 9, 10]),
        (99, {}, list(range(1, 11))),
        (-1, {}, list(range(1, 11))),
        (-1, {"params": SamplingParams(max_tokens=29)}, [8, 9, 10]),
        (-1, {"tokens": [7] * 50, "params": SamplingParams(max_tokens=None)}, [7] * 31),
        (-1, {"tokens": [7] * 50, "task": "embed"}, [7] * 32),
        (5, {"tokens": None, "text": "abcdef"}, [*b"bcdef"]),
    ],
)
def test_a_prompt_may_be_cut(keep: int, fields: dict[str, object], left: list[int]) -> None:
    active = accept(truncate_prompt_tokens=keep, **{"tokens": list(range(1, 11)), **fields})
    assert active.submits[0].tokens == left


def test_what_is_left_must_fit() -> None:
    with pytest.raises(ContextOverflow):
        accept(tokens=[7] * 50, truncate_prompt_tokens=40)
    with pytest.raises(ContextOverflow) as refused:
        accept(tokens=[7] * 50, truncate_prompt_tokens=-1, params=SamplingParams(max_tokens=32))
    assert refused.value.param == "prompt"


def test_a_prompt_that_is_only_scored_gives_no_tokens() -> None:
    active = accept(tokens=[5, 6], params=SamplingParams(max_tokens=0, prompt_logprobs=0, logprobs=0))
    assert active.submits[0].max_output == 1  # what comes with it is what is wanted
    entry = TokenLogprobs(6, -0.5, 1, [])
    chunk, cancel = active.push(
        Delta(id="r/0", tokens=[0], logprobs=[entry], prompt_logprobs=[entry], finish=FinishReason.END, timings=ENDED)
    )
    assert (chunk.tokens, chunk.text, chunk.finish, cancel) == ([], "", FinishReason.LENGTH, None)
    assert chunk.prompt_logprobs == [None, entry]
    done = active.completion()
    assert (done.tokens, done.choices[0].logprobs, done.prompt_logprobs) == ([], [], [None, entry])
    with pytest.raises(ContextOverflow):  # there must be room for one
        accept(tokens=[5] * 32, params=SamplingParams(max_tokens=0))


@pytest.mark.parametrize("finish", [FinishReason.ERROR, FinishReason.CANCELLED, FinishReason.TIMEOUT])
def test_scoring_that_failed_says_so(finish: FinishReason) -> None:
    active = accept(tokens=[5, 6], params=SamplingParams(max_tokens=0))
    chunk, _ = active.push(Delta(id="r/0", finish=finish, timings=ENDED))
    assert chunk.finish is finish


def test_prompt_logprobs_come_with_the_chunk_they_came_with() -> None:
    active = accept(tokens=[5, 6], params=SamplingParams(max_tokens=4, prompt_logprobs=0))
    entry = TokenLogprobs(6, -0.5, 1, [])
    first, _ = active.push(Delta(id="r/0", tokens=[97], prompt_logprobs=[entry]))
    second, _ = active.push(Delta(id="r/0", tokens=[98]))
    assert (first.prompt_logprobs, second.prompt_logprobs) == ([None, entry], None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tokens": []}, "prompt"),
        ({"tokens": [5, 128]}, "prompt"),
        ({"tokens": [-1]}, "prompt"),
        ({"messages": []}, "messages"),
        ({"text": "ü"}, "prompt"),
        ({"text": "ü", "task": "embed"}, "input"),
        ({"messages": [{"role": "user", "content": "ü"}]}, "messages"),
        ({"text": "x" * 29}, "max_tokens"),
        ({"text": "x" * 40}, "prompt"),
        ({"text": "x", "params": SamplingParams(max_tokens=4, stop_tokens=(128,))}, "stop_tokens"),
        ({"text": "x", "params": SamplingParams(max_tokens=4, logit_bias={500: 1.0})}, "logit_bias"),
        ({"text": "x", "params": SamplingParams(max_tokens=4, banned_tokens=(-3,))}, "banned_tokens"),
        ({"text": "x", "params": SamplingParams(max_tokens=None, min_tokens=31)}, "min_tokens"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        accept(**fields)
    assert caught.value.param == param


def test_an_overflow_says_how_much_was_asked_and_how_much_there_is() -> None:
    with pytest.raises(ContextOverflow, match=r"41 tokens and up to 4 more .* holds 32: shorten the prompt$"):
        accept(text="x" * 40)
    with pytest.raises(ContextOverflow, match="or lower min_tokens"):
        accept(text="x", params=SamplingParams(max_tokens=None, min_tokens=99))


def test_what_cannot_fit_is_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Letters, "encode")
    for task in ("generate", "embed"):
        with pytest.raises(
            ContextOverflow, match="65 characters, which are at least 33 tokens, but the context holds 32"
        ):
            accept(text="x" * 65, task=task)
    with pytest.raises(ContextOverflow) as caught:
        accept(messages=[{"role": "user", "content": "x" * 65}])
    assert caught.value.param == "messages"
    with pytest.raises(ContextOverflow, match="65 characters") as caught:
        PIPELINE.tokenize(Request(id="r", params=SamplingParams(), text="x" * 65))
    assert caught.value.param == "prompt"


def test_an_embedding_may_fill_the_context_and_is_given_its_vector() -> None:
    active = accept(tokens=[5] * 32, task="embed", pooling="last")
    (submit,) = active.submits
    assert (submit.task, submit.pooling, submit.max_output) == ("embed", "last", 0)
    chunk, cancel = active.push(Delta(id="r/0", finish=FinishReason.END, embedding=b"\0\0\x80?", timings=ENDED))
    assert cancel is None
    assert chunk is not None
    assert chunk.tokens == []
    assert active.done
    assert active.embedding() == b"\0\0\x80?"


def test_an_embedding_that_failed_raises_what_went_wrong() -> None:
    active = accept(text="hi", task="embed")
    active.push(Delta(id="r/0", finish=FinishReason.ERROR, error="broke", code="engine_died", timings=ENDED))
    with pytest.raises(EngineDied, match="broke"):
        active.embedding()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"text": ""}, "the input is empty"),
        ({"tokens": []}, "the input is empty"),
        ({"tokens": [5, 128]}, "input: token id 128"),
        ({"text": "x" * 32}, "the input has 33 tokens, but the context holds 32"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_name(fields: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        accept(**fields, task="embed")
    assert caught.value.param == "input"


def test_a_model_without_tokenizer_or_template_says_so() -> None:
    bare = Pipeline(SPEC, None, None, context=32)
    params = SamplingParams(max_tokens=4)
    assert bare.accept(Request(id="r", params=params, tokens=[1])).submits[0].tokens == [1]
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        bare.accept(Request(id="r", params=params, text="hi"))
    with pytest.raises(InvalidRequest, match="no chat template"):
        Pipeline(SPEC, Letters(), None, context=32).accept(
            Request(id="r", params=params, messages=[{"role": "user", "content": "hi"}])
        )


def test_a_stop_string_cancels_the_sequence_at_the_token_that_completed_it() -> None:
    active = accept(text="hi", params=SamplingParams(max_tokens=8, stop=("cd",)))
    chunk, cancel = active.push(Delta(id="r/0", tokens=[*b"abcde"]))
    assert chunk is not None
    assert (chunk.text, chunk.finish) == ("ab", FinishReason.STOP_STRING)
    assert cancel == Cancel("r/0", FinishReason.STOP_STRING, at_output=4)
    assert not active.done
    assert active.push(Delta(id="r/0", finish=FinishReason.STOP_STRING, timings=ENDED)) == (None, None)
    assert active.done
    assert active.completion().choices[0].tokens == [*b"abcd"]


def test_a_stop_string_in_the_last_delta_needs_no_cancel() -> None:
    active = accept(text="hi", params=SamplingParams(max_tokens=4, stop=("cd",)))
    _, cancel = active.push(Delta(id="r/0", tokens=[*b"abcd"], finish=FinishReason.LENGTH, timings=ENDED))
    assert cancel is None
    assert active.completion().finish is FinishReason.STOP_STRING


def test_who_leaves_cancels_only_what_still_runs() -> None:
    active = accept(text="hi", params=SamplingParams(max_tokens=4, n=2))
    active.push(Delta(id="r/0", tokens=[*b"ab"], finish=FinishReason.LENGTH, timings=ENDED))
    active.push(Delta(id="r/1", tokens=[*b"a"]))
    assert active.cancels() == [Cancel("r/1", at_output=1)]


def test_the_completion_tells_all() -> None:
    active = accept(text="hi", params=SamplingParams(max_tokens=4, prompt_logprobs=0))
    of_prompt = [TokenLogprobs(token, -1.0, 1, []) for token in b"hi"]
    active.push(Delta(id="r/0", tokens=[*b"a"], prompt_logprobs=of_prompt, cached_tokens=2))
    active.push(Delta(id="r/0", finish=FinishReason.ERROR, error="broke", code="engine_died", timings=ENDED))
    result = active.completion()
    assert result.prompt_tokens == [1, *b"hi"]
    assert result.prompt_logprobs == [None, *of_prompt]
    assert (result.cached_tokens, result.error, result.error_code) == (2, "broke", "engine_died")
    assert (result.text, result.finish) == ("a", FinishReason.ERROR)
