"""Renders a chat template with the full budget of work, in a killable process that `template` starts."""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import InvalidRequest
from penstock.prompt.bounded_render import compile_template, full_budget, render_bounded
from penstock.system.killable_process import Answer, answer_questions


def prepare(source: bytes) -> Answer:
    template = compile_template(json.loads(source))

    def answer(line: bytes) -> bytes:
        """Template variables -> {"text": ...} or {"error": ...}. ASCII JSON, which can hold lone surrogates."""
        try:
            variables: dict[str, Any] = json.loads(line)
            return json.dumps({"text": render_bounded(template, variables, full_budget(variables))}).encode()
        except InvalidRequest as error:
            return json.dumps({"error": error.message}).encode()
        except MemoryError:  # for the question or the answer itself
            return json.dumps({"error": "the messages are too long for the chat template"}).encode()

    return answer


if __name__ == "__main__":
    answer_questions(prepare)
