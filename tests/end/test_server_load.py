"""Two hundred clients at once, a third of whom leave: everybody else gets the right answer, and nothing is left."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import httpx

from helpers.server_process import PATIENCE_S, Server, until
from penstock import LLM, SamplingParams

CLIENTS = 200


class Client:
    """Asks for a greedy answer. If it has `patience`, it leaves with that many tokens; with 0, when it has asked."""

    def __init__(self, number: int, drawn: random.Random) -> None:
        self.prompt = [2 + number, *(drawn.randrange(2, 300) for _ in range(drawn.randrange(40)))]
        self.max_tokens = drawn.randrange(20, 60)
        self.patience = drawn.randrange(12) if number % 3 == 0 else None
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.complete = False

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(temperature=0.0, max_tokens=self.max_tokens, ignore_eos=True)

    async def ask(self, server: Server, http: httpx.AsyncClient) -> None:
        body = {
            "model": server.model,
            "prompt": self.prompt,
            "temperature": 0,
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
        }
        if self.patience == 0:
            await self._hang_up(server, json.dumps(body).encode())
            return
        async with http.stream("POST", f"{server.api}/completions", json=body) as response:
            assert response.status_code == 200
            await self._read(response)

    async def _read(self, response: httpx.Response) -> None:
        async for line in response.aiter_lines():
            if not line:
                continue
            if line == "data: [DONE]":
                self.complete = True
                return
            (choice,) = json.loads(line.removeprefix("data: "))["choices"]
            self.tokens += choice.get("token_ids", [])
            self.finish = choice["finish_reason"]
            if self.patience is not None and len(self.tokens) >= self.patience:
                return

    async def _hang_up(self, server: Server, body: bytes) -> None:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}"
        )
        writer.write(head.encode() + b"\r\n\r\n" + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


def test_many_clients_and_deserters(server: Server, tiny: Path) -> None:
    clients = [Client(number, random.Random(number)) for number in range(CLIENTS)]

    async def crowd() -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(limits=limits, timeout=PATIENCE_S) as http:
            await asyncio.gather(*(client.ask(server, http) for client in clients))

    tasks = server.metric("event_loop_tasks")
    asyncio.run(crowd())
    until(server.idle, "the end of what the deserters left")
    until(lambda: server.metric("event_loop_tasks") <= tasks, "the end of all tasks")

    loyal = [client for client in clients if client.patience is None]
    deserters = [client for client in clients if client.patience is not None]
    with LLM(str(tiny), kv_memory="100MB", threads=1, device="cpu") as llm:
        results = llm.generate([client.prompt for client in clients], [client.params for client in clients])
    expected: dict[int, list[int]] = {
        id(client): result.tokens for client, result in zip(clients, results, strict=True)
    }
    assert all(client.complete and client.finish == "length" for client in loyal)
    assert all(client.tokens == expected[id(client)] for client in loyal)
    assert not any(client.complete for client in deserters)
    assert all(client.tokens == expected[id(client)][: len(client.tokens)] for client in deserters)
    assert "Traceback" not in server.log


def test_many_answers_in_one_piece(server: Server) -> None:
    """Through the SDK, beside each other: none gets another's."""

    async def ask() -> list[Any]:
        async with server.async_client() as client:
            bias = {str(token): {str(token): 100} for token in range(66, 98)}
            return await asyncio.gather(
                *(
                    client.completions.create(
                        model=server.model,
                        prompt=[int(token)],
                        logit_bias=only,
                        max_tokens=8,
                        extra_body={"return_token_ids": True},
                    )
                    for token, only in bias.items()
                )
            )

    answers = asyncio.run(ask())
    assert [answer.choices[0].token_ids for answer in answers] == [[token] * 8 for token in range(66, 98)]
    until(server.idle, "the end of it all")


def test_no_text_is_kept_without_keep_texts(server: Server) -> None:
    secret = "The door opens at noon, and the key lies beneath the third stone from the left. " * 4
    with server.client() as client, httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
        client.completions.create(model=server.model, prompt=secret, max_tokens=4)
        until(server.idle, "the end of the request")
        tree = http.get("/observe/cache/tree", params={"limit": 2000}).json()
        assert tree["nodes"]
        assert all(node["text"] is None for node in tree["nodes"])
        assert secret[:12] not in http.get("/observe/requests").text
