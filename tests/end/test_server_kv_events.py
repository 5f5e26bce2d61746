"""A router beside the server follows what its engine caches."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec
import zmq

from helpers.ports import reserve_port
from helpers.server_process import PATIENCE_S, Server


def test_a_subscriber_sees_the_blocks_of_a_prompt(tiny: Path) -> None:
    address = f"tcp://127.0.0.1:{reserve_port()}"
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.subscribe(b"kv-events")
    socket.reconnect_ivl = 20
    socket.connect(address)
    with Server(tiny, f"--kv-events={address}", "--block-size=16", "--kv-memory=60MB") as server:
        stored: list[int] = []
        numbers: list[int] = []
        for number in range(1000):  # until the subscription has arrived
            tokens = [5 + (7 * number + place) % 60 for place in range(40)]
            body = {"prompt": tokens, "max_tokens": 1}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S)
            assert answer.status_code == 200, answer.text
            if not socket.poll(50):
                continue
            _, count, payload = socket.recv_multipart()
            numbers.append(int.from_bytes(count, "big"))
            for name, *fields in msgspec.msgpack.decode(payload)[1]:
                if name == "BlockStored":
                    hashes, parent, stored, size, _, medium = fields
                    assert (len(hashes), size, medium) == (len(stored) // 16, 16, "CPU")
            if stored:
                break
        assert stored == tokens[:32]
        assert parent is None
    socket.close(linger=0)
    context.term()
