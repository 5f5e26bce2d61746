"""Renders a chat template with all the work it may take, in a process of its own: `template` starts it, as a
`system.killable_process.HelperProcess`, for renderings that are not cheap."""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import InvalidRequest
from penstock.prompt.bounded_render import compiled, full_work, run
from penstock.system.killable_process import Answer, answer_questions


def prepare(source: bytes) -> Answer:
    template = compiled(json.loads(source))

    def answer(line: bytes) -> bytes:
        """Of the variables {"text": ...}, or {"error": ...} if it cannot be rendered. JSON of ASCII characters, which
        holds even half of a surrogate pair."""
        try:
            variables: dict[str, Any] = json.loads(line)
            return json.dumps({"text": run(template, variables, full_work(variables))}).encode()
        except InvalidRequest as error:
            return json.dumps({"error": error.message}).encode()
        except MemoryError:  # for the question or the answer itself
            return json.dumps({"error": "the messages are too long for the chat template"}).encode()

    return answer


if __name__ == "__main__":
    answer_questions(prepare)
