"""The real thing: `penstock serve smollm2`, and a few questions through the SDKs."""

from collections.abc import Iterator
from typing import Any

import anthropic
import ollama
import pytest

from helpers.server_process import PATIENCE_S, Server
from penstock.store.files import ModelFiles

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def real(smollm2: ModelFiles) -> Iterator[Server]:
    with Server("smollm2", "--kv-memory", "512MB") as server:
        yield server


def test_a_question(real: Server) -> None:
    with real.client() as client:
        answer = client.chat.completions.create(
            model=real.model,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=24,
        )
        print(real.log)
        text = answer.choices[0].message.content
        assert text is not None
        assert "Paris" in text
        assert answer.choices[0].finish_reason == "stop"
        with client.chat.completions.create(
            model=real.model,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=24,
            stream=True,
        ) as stream:
            chunks = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert "".join(chunks) == text
        assert answer.usage is not None
        # The role, one per token but the one that ends it, and the finish reason. Few tokens share a chunk, if any.
        assert answer.usage.completion_tokens / 2 < len(chunks) <= answer.usage.completion_tokens + 1


def test_the_newer_apis(real: Server) -> None:
    tool: Any = {
        "name": "weather",
        "description": "The weather of a town, today.",
        "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    }
    claude = anthropic.Anthropic(base_url=real.url, api_key="none", max_retries=0, timeout=PATIENCE_S)
    with claude, real.client() as client:
        message = claude.messages.create(
            model=real.model,
            max_tokens=100,
            messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[tool],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            extra_body={"temperature": 0},
        )
        (use,) = [block for block in message.content if block.type == "tool_use"]
        assert (message.stop_reason, use.name, use.input) == ("tool_use", "weather", {"town": "Paris"})
        first = client.responses.create(model=real.model, input="What is the capital of France?", temperature=0)
        assert "Paris" in first.output_text
        assert first.status == "completed"
        with client.responses.stream(
            model=real.model, input="And of Spain?", previous_response_id=first.id, temperature=0
        ) as stream:
            assert "Madrid" in stream.get_final_response().output_text


def test_a_tool_is_called_through_ollamas_api(real: Server) -> None:
    """Shown how, the model does it by itself: Ollama has no way to make it."""

    def weather(town: str) -> str:
        """The weather of a town, today."""
        return f"rain in {town}"

    def call(town: str) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"town": town}}}]}

    talk: list[Any] = []
    for town in ("Rome", "Oslo"):
        talk += [{"role": "user", "content": f"{town}?"}, call(town)]
    talk.append({"role": "user", "content": "Paris?"})
    options = {"temperature": 0, "num_predict": 60}
    with ollama.Client(real.url, timeout=PATIENCE_S) as client:
        answer = client.chat(real.model, talk, tools=[weather], options=options)
        (made,) = answer.message.tool_calls or ()
        assert (made.function.name, made.function.arguments) == ("weather", {"town": "Paris"})
        assert (answer.message.content, answer.done_reason) == ("", "stop")
        streamed = list(client.chat(real.model, talk, tools=[weather], options=options, stream=True))
        assert [part.message.tool_calls for part in streamed if part.message.tool_calls] == [[made]]
        talk += [answer.message, {"role": "tool", "tool_name": "weather", "content": weather("Paris")}]
        assert client.chat(real.model, talk, options=options).message.content
