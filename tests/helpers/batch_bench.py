"""A BatchManager whose lines are answered by a stub instead of an engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

from penstock.batch.data_folder import DATABASE, DataFolder
from penstock.batch.limiter import Capacity
from penstock.batch.manager import BatchManager
from penstock.batch.protocol import BatchData
from penstock.batch.records import Batch, LineAnswer, LineRequest, new_id
from penstock.errors import ModelNotFound

CHAT = "/v1/chat/completions"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}


def line(name: str, **changes: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": name}]}
    return {"custom_id": name, "method": "POST", "url": CHAT, "body": body} | changes


def lines(count: int) -> bytes:
    return "\n".join(json.dumps(line(f"r{index}")) for index in range(count)).encode()


class Bench:
    def __init__(self, root: Path, slots: int = 8, open_data: Callable[[], BatchData] | None = None) -> None:
        """`open_data`: of several servers; None: in the folder `root`."""
        self.root = root
        self.open_data = open_data
        self.now = 1_000_000.0
        self.asked: list[str] = []  # the messages of the lines, in the order in which they came
        self.capacity: Capacity | None = Capacity(slots, 0)
        self.statuses: dict[str, list[int]] = {}  # of the next answers to a line; 200 without
        self.says_when = False  # whether answers that are no success have a Retry-After
        self.gate = asyncio.Event()  # answers wait for it
        self.gate.set()
        self.answered_at_once: set[str] = set()  # lines that pass the gate
        self.manager = self._new_manager()

    def _new_manager(self) -> BatchManager:
        folder = self.root
        return BatchManager(
            self.open_data or partial(DataFolder, folder),
            may_have_batches=lambda: self.open_data is not None or (folder / DATABASE).exists(),
            dispatch=self.dispatch,
            capacity=lambda model: self.capacity,
            find_model=self.find_model,
            max_line=1000,
            clock=lambda: self.now,
        )

    def find_model(self, batch: Batch, name: str) -> str:
        if name != "tiny":
            raise ModelNotFound(f"the model {name!r} does not exist", param="model")
        return name

    async def dispatch(self, request: LineRequest) -> LineAnswer:
        text = json.loads(request.body)["messages"][0]["content"]
        self.asked.append(text)
        if text not in self.answered_at_once:
            await self.gate.wait()
        status = self.statuses.get(text, []).pop(0) if self.statuses.get(text) else 200
        answer = {"echo": text, "usage": USAGE} if status == 200 else {"error": {"message": "wrong"}}
        return LineAnswer(status, json.dumps(answer).encode(), self.says_when and status != 200)

    async def restart(self) -> None:
        """A new server over the same folder."""
        await self.manager.close()
        self.manager = self._new_manager()
        self.manager.start()

    async def upload(self, content: bytes, tenant: str = "") -> str:
        folder, name = await self.manager.open(), new_id("file-")
        with closing(folder.contents.new_draft(name)) as draft:
            draft.write(content)
            draft.publish()
        await self.manager.add_file(tenant, name=name, filename="in.jsonl", size=len(content), lifetime_s=3600)
        return name

    async def create(self, content: bytes, tenant: str = "", **options: Any) -> str:
        file = await self.upload(content, tenant)
        fields: dict[str, Any] = {"endpoint": CHAT, "metadata": None, "output_expires_s": None, **options}
        return (await self.manager.create_batch(tenant, input_file_id=file, **fields)).id

    async def until(self, name: str, *statuses: str, tenant: str = "") -> Batch:
        return await self.wait_for(name, lambda batch: batch.status in statuses, tenant)

    async def wait_for(self, name: str, found: Callable[[Batch], bool], tenant: str = "") -> Batch:
        async with asyncio.timeout(30):
            while not found(batch := await self.manager.batch(tenant, name)):
                await asyncio.sleep(0.001)
        return batch

    async def read(self, name: str | None, tenant: str = "") -> list[dict[str, Any]]:
        if name is None:
            return []
        await self.manager.file(tenant, name)
        with (await self.manager.open()).contents.open(name) as file:
            return [json.loads(text) for text in file.read().splitlines()]


@asynccontextmanager
async def bench(root: Path, **options: Any) -> AsyncIterator[Bench]:
    made = Bench(root, **options)
    try:
        yield made
    finally:
        await made.manager.close()
