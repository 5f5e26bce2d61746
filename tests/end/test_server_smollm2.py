"""The real thing: `penstock serve smollm2`, and one question through the SDK."""

import time

import pytest

from penstock.store.files import ModelFiles
from server_process import Server

pytestmark = pytest.mark.weights


def test_a_question(smollm2: ModelFiles) -> None:
    started = time.monotonic()
    with Server("smollm2", "--kv-memory", "512MB") as server, server.client() as client:
        answer = client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=24,
        )
        print(f"start to first answer: {time.monotonic() - started:.1f} s\n{server.log}")
        text = answer.choices[0].message.content
        assert text is not None
        assert "Paris" in text
        assert answer.choices[0].finish_reason == "stop"
        with client.chat.completions.create(
            model=server.model,
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
