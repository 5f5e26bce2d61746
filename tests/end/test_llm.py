"""The library's surface, on a tiny model: what goes in, what comes out, and what is left behind."""

import json
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import tiny_models
from penstock import LLM, SamplingParams
from penstock.errors import (
    ArchitectureUnsupported,
    ContextOverflow,
    EngineDied,
    InvalidRequest,
    InvalidSetting,
    ModelInvalid,
    ModelNotFound,
    OutOfMemory,
    PenstockError,
    WeightsMismatch,
)
from penstock.flow import FinishReason
from penstock.startup.preflight import LEAST_CONTEXT

SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
QUESTION = [{"role": "user", "content": "the tea"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), context=256, block_size=8, threads=1) as llm:
        yield llm


def test_one_in_one_out_and_a_list_gives_a_list(llm: LLM) -> None:
    one = llm.generate("the tea", SHORT)
    assert llm.generate(one.prompt_tokens, SHORT).tokens == one.tokens
    both = llm.generate(["the tea", "a note"], [SHORT, SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)])
    assert [len(result.tokens) for result in both] == [8, 3]
    assert both[0].tokens == one.tokens
    assert llm.generate([], SHORT) == []
    chats = llm.chat([QUESTION, QUESTION], SHORT)
    assert chats[0].tokens == chats[1].tokens == llm.chat(QUESTION, SHORT).tokens


def test_a_stream_is_the_same_answer_in_pieces(llm: LLM) -> None:
    whole = llm.chat(QUESTION, SHORT)
    chunks = list(llm.stream(QUESTION, SHORT))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token for chunk in chunks for token in chunk.tokens] == whole.tokens
    assert [chunk.finish for chunk in chunks][-1] is FinishReason.LENGTH
    assert not any(chunk.finish for chunk in chunks[:-1])


def test_leaving_a_stream_early_cancels_it(llm: LLM) -> None:
    stream = llm.stream("the tea", SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    stream.close()
    llm.generate("x", SHORT)  # turns the loop


def test_interleaved_streams_and_threads(llm: LLM) -> None:
    expected = [llm.generate([5, 6, 7, place], SHORT).tokens for place in range(6)]
    streams = [llm.stream([5, 6, 7, place], SHORT) for place in range(3)]
    found: list[list[int]] = [[] for _ in range(6)]
    threads = [
        threading.Thread(target=lambda place=place: found[place].extend(llm.generate([5, 6, 7, place], SHORT).tokens))
        for place in range(3, 6)
    ]
    for thread in threads:
        thread.start()
    for step in range(8):
        for place, stream in enumerate(streams):
            for chunk in [next(stream, None)] if step < 7 else list(stream):
                found[place] += chunk.tokens if chunk else []
    for thread in threads:
        thread.join()
    assert found == expected


def test_choices_differ_and_a_seed_repeats_them(llm: LLM) -> None:
    params = SamplingParams(n=4, max_tokens=12, seed=7, ignore_eos=True)
    first, again = llm.generate("the tea", params), llm.generate("the tea", params)
    assert len({tuple(choice.tokens) for choice in first.choices}) == 4
    assert [choice.tokens for choice in first.choices] == [choice.tokens for choice in again.choices]
    beside = llm.generate(["the tea", "a note", "no"], [params, SHORT, SHORT])[0]
    assert [choice.tokens for choice in beside.choices] == [choice.tokens for choice in first.choices]


def test_the_prompt_of_several_choices_is_computed_once(llm: LLM) -> None:
    before = llm.stats()["prefix_hit_tokens"]
    llm.generate([9] * 80, SamplingParams(n=4, max_tokens=2, ignore_eos=True))
    assert llm.stats()["prefix_hit_tokens"] - before == 3 * 72


def test_stop_string_stop_token_length_and_context(llm: LLM) -> None:
    whole = llm.generate("the tea", SHORT)
    stop = next(chunk.text for chunk in list(llm.stream("the tea", SHORT))[3:] if chunk.text.strip())
    cut = llm.generate("the tea", SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, stop=(stop,)))
    assert (cut.finish, cut.choices[0].stop) == (FinishReason.STOP_STRING, stop)
    assert cut.text == whole.text[: whole.text.index(stop)]
    token = whole.tokens[2]
    by_token = llm.generate("the tea", SamplingParams(temperature=0.0, max_tokens=8, stop_tokens=(token,)))
    assert (by_token.finish, by_token.choices[0].stop) == (FinishReason.STOP_TOKEN, token)
    assert by_token.tokens == whole.tokens[: whole.tokens.index(token) + 1]
    assert whole.finish is FinishReason.LENGTH
    full = llm.generate([5] * 250, SamplingParams(max_tokens=None, ignore_eos=True))
    assert (full.finish, len(full.tokens)) == (FinishReason.CONTEXT, 6)


def test_end_of_sequence(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, logit_bias={tiny_models.END_TOKEN: 100.0})
    result = llm.generate("the tea", params)
    assert (result.finish, result.tokens, result.text) == (FinishReason.END, [tiny_models.END_TOKEN], "")
    later = llm.generate(
        "the tea", SamplingParams(max_tokens=8, min_tokens=3, logit_bias={tiny_models.END_TOKEN: 100.0})
    )
    assert (later.finish, len(later.tokens)) == (FinishReason.END, 4)


def test_a_timeout_returns_what_there_is(llm: LLM) -> None:
    result = llm.generate("the tea", SamplingParams(max_tokens=200, ignore_eos=True, timeout_s=0.002))
    assert result.finish is FinishReason.TIMEOUT
    assert len(result.tokens) < 200


def test_logprobs(llm: LLM) -> None:
    result = llm.generate("the tea", SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=1))
    of_output = result.choices[0].logprobs
    assert of_output is not None
    assert [entry.token for entry in of_output] == result.tokens
    assert all(entry.rank == 1 and entry.top[0][0] == entry.token and len(entry.top) == 2 for entry in of_output)
    of_prompt = result.prompt_logprobs
    assert of_prompt is not None
    assert of_prompt[0] is None
    assert [entry.token for entry in of_prompt[1:] if entry] == result.prompt_tokens[1:]


def test_a_batch_waits_its_turn_where_the_queue_is_short(folder: Path) -> None:
    with LLM(str(folder), threads=1, max_waiting=3, max_sequences=2) as llm:
        results = llm.generate(["the tea"] * 12, SamplingParams(max_tokens=2, n=2, ignore_eos=True))
        assert [choice.finish for result in results for choice in result.choices] == [FinishReason.LENGTH] * 24
        llm.check_integrity()


@pytest.mark.parametrize("isolate", [False, True])
def test_what_is_closed_is_over(folder: Path, isolate: bool) -> None:
    with LLM(str(folder), threads=1, isolate=isolate) as llm:
        stream = llm.stream("the tea", SamplingParams(max_tokens=200, ignore_eos=True))
        next(stream)
        backend = None if isolate else weakref.ref(llm._driver.engine.loop.backend)  # type: ignore[attr-defined]
    with pytest.raises(EngineDied, match="closed"):
        list(stream)
    with pytest.raises(EngineDied, match="closed"):
        llm.generate("the tea", SHORT)
    with pytest.raises(EngineDied, match="closed"):
        llm.stats()
    assert backend is None or backend() is None  # and with it the model and its memory
    llm.close()  # again does no harm


def test_other_threads_hear_of_the_end(folder: Path) -> None:
    llm, heard = LLM(str(folder), threads=1), []

    def wait() -> None:
        try:
            llm.generate(["the tea"] * 50, SamplingParams(max_tokens=400, ignore_eos=True), progress=False)
        except EngineDied as error:
            heard.append(error.message)

    thread = threading.Thread(target=wait)
    thread.start()
    while not llm.stats()["running"]:
        pass
    llm.close()
    thread.join(60)
    assert heard == ["the engine was closed"]


def test_timings_and_cached_tokens(llm: LLM) -> None:
    prompt = [11] * 64
    llm.generate(prompt, SHORT)
    result = llm.generate(prompt, SHORT)
    assert result.cached_tokens == 56
    choice = result.choices[0]
    assert choice.timings is not None
    assert choice.timings.queue_s >= 0
    assert choice.timings.first_token_s >= choice.timings.prefill_s > 0
    assert choice.per_token_s > 0


def test_salted_prefixes_are_not_shared(llm: LLM) -> None:
    long = [{"role": "user", "content": "abc " * 20}]
    llm.chat(long, SHORT, salt="one")
    assert llm.chat(long, SHORT, salt="two").cached_tokens == 0
    assert llm.chat(long, SHORT, salt="one").cached_tokens > 0


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ("", SHORT, None),
        ([], SHORT, None),
        ([tiny_models.VOCAB], SHORT, "prompt"),
        ([-1], SHORT, "prompt"),
        ([5] * 300, SHORT, "prompt"),
        ([5] * 250, SHORT, "max_tokens"),
        ([5], SamplingParams(max_tokens=4, allowed_tokens=(999,)), "allowed_tokens"),
        ([{"role": "user"}, 3], SHORT, "prompt"),
    ],
)
def test_bad_prompts_are_refused_before_any_model_time(
    llm: LLM, prompt: object, params: SamplingParams, param: str | None
) -> None:
    steps = llm.stats()["steps"]
    with pytest.raises(InvalidRequest) as caught:
        list(llm.stream(prompt, params))
    assert param is None or caught.value.param == param
    with pytest.raises(InvalidRequest, match="prompt 1: "):
        llm.generate([[5, 6], prompt], [SHORT, params])
    assert llm.stats()["steps"] == steps


def test_what_is_no_prompt_at_all_is_told(llm: LLM) -> None:
    for call in (llm.generate, llm.embed, llm.chat):
        for given in (5, None):
            with pytest.raises(InvalidRequest, match=f"got {given}"):
                call(given)  # type: ignore[operator]
    with pytest.raises(InvalidRequest, match="messages must be a list"):
        llm.chat("a text")
    for params in ({"max_tokens": 3}, 3, [{"max_tokens": 3}]):
        with pytest.raises(InvalidRequest, match="params must be SamplingParams"):
            llm.generate("the tea", params)  # type: ignore[arg-type]
    for stop in (5, "text", (3,)):
        with pytest.raises(InvalidRequest, match="stop is a tuple of strings"):
            SamplingParams(stop=stop)  # type: ignore[arg-type]


def test_an_overlong_conversation_says_by_how_much(llm: LLM) -> None:
    with pytest.raises(ContextOverflow, match="256"):
        llm.chat([{"role": "user", "content": "a, b! " * 200}], SHORT)


def test_a_step_that_fails_ends_its_requests_and_nothing_else(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = llm._driver.engine.loop.backend  # type: ignore[attr-defined]

    def broken(*_: object) -> None:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(backend.slots, "apply", broken)
    result = llm.generate("the tea", SHORT)
    assert result.finish is FinishReason.ERROR
    assert "on fire" in (result.error or "")
    with pytest.raises(PenstockError, match="on fire"):
        list(llm.stream("the tea", SHORT))
    monkeypatch.undo()
    assert llm.generate("the tea", SHORT).finish is FinishReason.LENGTH


def test_an_interrupt_in_the_middle_of_a_step_leaves_the_engine_whole(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = llm._driver.engine.loop.backend  # type: ignore[attr-defined]
    collect = backend.collect

    def interrupted() -> None:
        collect()
        raise KeyboardInterrupt

    monkeypatch.setattr(backend, "collect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["the tea", "a note"], SHORT)
    assert not caplog.records  # nothing went wrong
    monkeypatch.undo()
    assert llm.generate("the tea", SHORT).finish is FinishReason.LENGTH


# --- models that cannot be opened


def test_unknown_model() -> None:
    with pytest.raises(ModelNotFound, match="smollm2"):
        LLM("smolm2")


def test_unknown_setting() -> None:
    with pytest.raises(InvalidSetting, match="blocksize"):
        LLM("smollm2", blocksize=4)


def test_without_a_context_it_is_as_long_as_memory_allows(folder: Path) -> None:
    """A block of 8 tokens takes 3 KiB in 16 bit, and one is nobody's."""
    with LLM(str(folder), kv_memory="150KiB", block_size=8, threads=1, device="cpu") as llm:
        fits = llm.facts["context"]
        assert LEAST_CONTEXT <= fits < llm.model.spec.context
        with pytest.raises(ContextOverflow, match=f"the context holds {fits}"):
            llm.generate([5] * fits, SamplingParams(max_tokens=1))
        assert len(llm.generate([5] * (fits - 4), SamplingParams(max_tokens=4, ignore_eos=True)).tokens) == 4


def test_more_context_than_the_model_has(folder: Path) -> None:
    with pytest.raises(InvalidSetting, match="512 tokens"):
        LLM(str(folder), context=1024)


def test_no_room_for_the_cache(folder: Path) -> None:
    with pytest.raises(OutOfMemory, match="missing"):
        LLM(str(folder), kv_memory="10kB")


def test_no_room_for_the_weights(folder: Path, tmp_path: Path) -> None:
    """A config of 100 billion parameters, on any machine these tests run on."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 100, "vocab_size": 256000}
    config |= {"num_attention_heads": 128, "num_key_value_heads": 8, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(OutOfMemory, match=r"weights take .* missing"):
        LLM(str(tmp_path), load_format="dummy", device="cpu")


def test_a_broken_gguf(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00 and then nothing of use")
    with pytest.raises(ModelInvalid):
        LLM(str(file))


def test_truncated_safetensors(folder: Path, tmp_path: Path) -> None:
    copy = tiny_models.make("llama", tmp_path / "copy")
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelInvalid, match="truncated"):
        LLM(str(copy))


def test_tensors_that_are_missing_or_left_over_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    copy = tiny_models.make("qwen3", tmp_path / "copy")
    tensors = load_file(copy / "model.safetensors")
    norm = "model.layers.1.self_attn.q_norm.weight"
    save_file({**tensors, "model.layers.1.self_attn.z_norm.weight": tensors[norm].clone()}, copy / "model.safetensors")
    with pytest.raises(WeightsMismatch, match="z_norm"):
        LLM(str(copy))
    del tensors[norm]
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(WeightsMismatch, match="q_norm"):
        LLM(str(copy))


def test_an_unsupported_architecture_names_the_supported(tmp_path: Path) -> None:
    copy = tiny_models.make("llama", tmp_path / "copy")
    config = copy / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "MambaForCausalLM"))
    with pytest.raises(ArchitectureUnsupported, match="Qwen3ForCausalLM"):
        LLM(str(copy))


def test_dummy_weights_need_only_a_config(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with LLM(str(tmp_path), load_format="dummy", threads=1) as llm:
        assert len(llm.generate([5, 6], SHORT).tokens) == 8
        with pytest.raises(InvalidRequest, match="no tokenizer"):
            llm.generate("the tea", SHORT)
