"""How much of its prompts the prefix cache has over a long session under a token budget, on a running server.

    python bench/context.py [--url http://127.0.0.1:8000] [--turns 20] [--total 1500] [--tokens 60]

Without --url it starts a server of --model. One session leaves its history to context assembly, which drops turns in
steps; the other sends what a client does that drops the oldest turn as soon as there is no room (a sliding window, with
/tokenize to count). Both have a system message and a document that stays; each has a cache of its own (`cache_salt`).
Prints `prompt_tokens` and `cached_tokens` of each turn, as the answers report them, and their sums.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

SYSTEM = "You are a patient guide to a hydroelectric power station. Answer in two or three sentences."
MANUAL = "The station has four turbines. Each has a valve, a governor and a generator. " * 12
TOPICS = (
    "the intake", "the penstock", "the turbines", "the governor", "the generator", "the transformer", "the dam",
    "the spillway", "the fish ladder", "the control room",
)  # fmt: skip


@contextlib.contextmanager
def serving(model: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile() as log:
        command = [str(Path(sys.executable).with_name("penstock")), "serve", model, "--port", "0"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while not (found := re.search(r"(http://[\d.:]+)/docs", Path(log.name).read_text())):
                if process.poll() is not None:
                    raise SystemExit(Path(log.name).read_text()[-2000:])
                time.sleep(0.1)
            yield found[1]
        finally:
            process.terminate()
            process.wait()


class Session:
    """A conversation whose questions are fixed and whose answers are the model's."""

    def __init__(self, client: httpx.Client, arguments: argparse.Namespace, *, assembled: bool) -> None:
        self.client, self.arguments, self.assembled = client, arguments, assembled
        self.system = {"role": "system", "content": SYSTEM}
        self.turns: list[list[dict[str, str]]] = []
        self.salt = uuid.uuid4().hex
        self.counts: list[tuple[int, int]] = []

    def ask(self, number: int) -> None:
        text = f"Question {number + 1}: tell me something new about {TOPICS[number % len(TOPICS)]} and its dangers."
        question = {"role": "user", "content": text}
        body: dict[str, Any] = {
            "max_tokens": self.arguments.tokens, "temperature": 0, "cache_salt": self.salt, "ignore_eos": True,
        }  # fmt: skip
        if self.assembled:
            body["messages"] = [self.system, *(one for turn in self.turns for one in turn), question]
            body["documents"] = [{"id": "manual", "text": MANUAL, "pinned": True}]
            body["context"] = {"budget": {"total": self.arguments.total}}
        else:
            body["messages"] = self._window(question)
        answer = self._post("/v1/chat/completions", body)
        usage = answer["usage"]
        self.counts.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
        self.turns.append([question, {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}])

    def _window(self, question: dict[str, str]) -> list[dict[str, str]]:
        system = {"role": "system", "content": f'{SYSTEM}\n\n<document id="manual">\n{MANUAL}\n</document>'}
        for first in range(len(self.turns) + 1):
            messages = [system, *(one for turn in self.turns[first:] for one in turn), question]
            if self._post("/tokenize", {"messages": messages})["count"] <= self.arguments.total - self.arguments.tokens:
                return messages
        raise SystemExit("the budget has no room for the question")

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = self.client.post(path, json=body)
        if response.status_code != 200:
            raise SystemExit(response.text)
        found: dict[str, Any] = response.json()
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--total", type=int, default=1500)
    parser.add_argument("--tokens", type=int, default=60)
    arguments = parser.parse_args()
    place = contextlib.nullcontext(arguments.url) if arguments.url else serving(arguments.model)
    with place as url, httpx.Client(base_url=url, timeout=600) as client:
        sessions = [Session(client, arguments, assembled=assembled) for assembled in (True, False)]
        print("turn   assembled: prompt cached      window: prompt cached")
        for number in range(arguments.turns):
            for session in sessions:
                session.ask(number)
            (prompt, cached), (other, hit) = (session.counts[-1] for session in sessions)
            print(f"{number + 1:4d} {prompt:18d} {cached:6d} {other:19d} {hit:6d}")
    for name, session in zip(("assembled", "window"), sessions, strict=True):
        prompt, cached = (sum(column) for column in zip(*session.counts, strict=True))
        print(f"{name}: {cached:,} of {prompt:,} prompt tokens from the cache ({cached / prompt:.0%})")


if __name__ == "__main__":
    main()
