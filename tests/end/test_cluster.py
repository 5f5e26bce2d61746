"""Engines on a Ray cluster of several nodes, all on this machine: a node dies under load, replicas come and go, groups
of ranks are placed as one."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.ports import reserve_port
from helpers.rank_processes import all_gone, other_ranks
from helpers.server_process import PATIENCE_S, Server, until
from penstock import LLM, SamplingParams
from penstock.startup.preflight import has_driver

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

STORE_BYTES = 80 << 20
SETTINGS = """
[cache]
kv_memory = "60MB"

[[models]]
name = "tiny"
model = "{tiny}"
threads = 1
"""
LONG = 1500  # tokens, some tenths of a second


class Nodes:
    """A head without CPUs, and nodes, at loopback addresses of their own."""

    def __init__(self, count: int, **each: int) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        self._addresses = itertools.count(2)
        head = {"num_cpus": 0, "include_dashboard": False, **self._options()}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.add(**each) for _ in range(count)]

    def add(self, **more: int) -> Any:
        return self.cluster.add_node(**{"num_cpus": 1, **more}, **self._options())

    def _options(self) -> dict[str, Any]:
        return {"object_store_memory": STORE_BYTES, "node_ip_address": f"127.0.0.{next(self._addresses)}"}

    def kill(self, node: Any) -> None:
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self.cluster.shutdown()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes(2)
    yield made
    made.close()


@pytest.fixture
def nodes_with_gpus() -> Iterator[Nodes]:
    """Ray counts two GPUs on each. There are none: engines compute on the CPU."""
    made = Nodes(2, num_cpus=2, num_gpus=2)
    yield made
    made.close()


def serve(nodes: Nodes, tiny: Path, folder: Path, more: str) -> Server:
    file = folder / "penstock.toml"
    file.write_text(SETTINGS.format(tiny=tiny) + more)
    return Server(f"--config={file}", f"--cluster={nodes.cluster.address}")


def generate(server: Server, prompt: str = "once", tokens: int = 300) -> int:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["usage"]["completion_tokens"]
    return found


def complete(server: Server, prompt: list[int]) -> list[int]:
    """The tokens of a greedy answer."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/completions", json={**body, "return_token_ids": True}, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def stream(server: Server, begun: threading.Event) -> dict[str, Any] | None:
    """Returns the error it ended in; None: it is complete."""
    body = {"model": "tiny", "prompt": "once", "max_tokens": LONG, "ignore_eos": True, "stream": True}
    error = None
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S) as answer:
        ended = False
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            begun.set()
            ended = line == "data: [DONE]"
            if not ended and "error" in (event := json.loads(line[6:])):
                error = event["error"]
    assert ended or error is not None, "the stream ended without a word"
    return error


def deployments(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{server.url}/admin/models", timeout=PATIENCE_S).json()["data"][0][
        "deployments"
    ]
    return found


def ready(server: Server) -> int:
    return sum(one["state"] == "ready" for one in deployments(server))


def ask_until(server: Server, enough: threading.Event) -> list[int]:
    counts = []
    while not enough.is_set():
        counts.append(generate(server))
    return counts


def test_a_node_that_dies_under_load_loses_no_whole_answer(tiny: Path, tmp_path: Path, nodes: Nodes) -> None:
    with serve(nodes, tiny, tmp_path, "replicas = 2\n") as server, ThreadPoolExecutor(32) as threads:
        assert ready(server) == 2
        enough = threading.Event()
        asking = [threads.submit(ask_until, server, enough) for _ in range(8)]
        try:
            begun = [threading.Event() for _ in range(8)]
            streams: list[Future[dict[str, Any] | None]] = [threads.submit(stream, server, event) for event in begun]
            assert all(event.wait(PATIENCE_S) for event in begun)
            nodes.kill(nodes.nodes[0])
            errors = [one.result(PATIENCE_S) for one in streams]
            until(lambda: ready(server) == 1, "the death of a replica")
            until(lambda: sum(one["decisions"] for one in deployments(server)) > 30, "more requests")
            nodes.add()
            until(lambda: ready(server) == 2, "another replica on the new node")
        finally:
            enough.set()
        counts = [count for one in asking for count in one.result(PATIENCE_S)]
        assert len(counts) > 8
        assert set(counts) == {300}
        assert all(error is None or error["code"] == "engine_died" for error in errors)
        assert "may be sent again" in next(error["message"] for error in errors if error is not None)
        assert httpx.get(f"{server.url}/observe/check", timeout=PATIENCE_S).json()["ok"]


def test_replicas_come_and_go_under_a_trace(tiny: Path, tmp_path: Path, nodes: Nodes) -> None:
    more = "max_sequences = 2\nmax_replicas = 2\nscale_up_s = 0.1\nscale_down_s = 0.5\n"
    with serve(nodes, tiny, tmp_path, more) as server, ThreadPoolExecutor(16) as threads:
        for _ in range(2):  # peaks of the trace
            enough = threading.Event()
            asking = [threads.submit(ask_until, server, enough) for _ in range(10)]
            try:
                until(lambda: ready(server) == 2, "a second replica")
            finally:
                enough.set()
            assert {count for one in asking for count in one.result(PATIENCE_S)} == {300}
            until(lambda: len(deployments(server)) == 1, "the second replica goes")
        changes = httpx.get(f"{server.url}/observe/scaling", timeout=PATIENCE_S).json()["decisions"]
        assert [(one["before"], one["after"]) for one in reversed(changes)][:4] == [(1, 2), (2, 1), (1, 2), (2, 1)]


def test_requests_of_a_prefix_go_where_it_is_cached(tiny: Path, tmp_path: Path, nodes: Nodes) -> None:
    """Also those of a replica on another node: the frontend computes the keys."""
    with serve(nodes, tiny, tmp_path, "replicas = 2\n") as server:
        texts = [f"{word} " * 40 for word in ("red", "blue")]
        for prompt in [*texts, *texts * 3]:
            generate(server, prompt, 4)
        query = {"limit": 8}
        listed = httpx.get(f"{server.url}/observe/requests", params=query, timeout=PATIENCE_S).json()["requests"]
        assert sum(one["cached_tokens"] > 0 for one in listed) >= 6
        assert {one["replica"] for one in listed} == {0, 1}


def test_blocks_travel_between_the_nodes_of_two_pools(tiny: Path, tmp_path: Path, nodes: Nodes) -> None:
    """Over TCP, at the nodes' own addresses. Without the prefill replica's node, the other computes prompts itself."""
    pools = 'replicas = 2\nprefill_replicas = 1\nprefill_min_tokens = 64\nkv_transport = "tcp"\n'
    prompts = [[(seed * 37 + place * 7) % 300 + 5 for place in range(200)] for seed in range(4)]
    with serve(nodes, tiny, tmp_path, pools) as server, LLM(str(tiny), kv_memory="60MB", threads=1) as llm:
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        expected = [list(llm.generate(prompt, params).tokens) for prompt in prompts]

        assert [complete(server, prompt) for prompt in prompts[:2]] == expected[:2]
        assert server.metrics()["penstock_kv_transfers_total"] == 2
        roles = [one["role"] for one in deployments(server)]
        assert roles == ["prefill", "decode"]
        facts = httpx.get(f"{server.url}/observe/facts", params={"replica": 0}, timeout=PATIENCE_S).json()["engine"]
        kind, host, _ = facts["kv_transfer"].split(":")
        assert (kind, host) in [("tcp", node.node_ip_address) for node in nodes.nodes]
        nodes.kill(next(node for node in nodes.nodes if node.node_ip_address == host))
        assert [complete(server, prompt) for prompt in prompts[2:]] == expected[2:]


@pytest.mark.skipif(has_driver(), reason="its GPUs are not there")
def test_a_group_of_ranks_is_placed_as_one(tiny: Path, tmp_path: Path, nodes_with_gpus: Nodes) -> None:
    """On one node, with a GPU for each rank. It dies as one, and another one takes its place, also on another node."""
    nodes, options = nodes_with_gpus, {"device": "auto", "tensor_parallel": 2, "kv_memory": "30MB"}
    with LLM(str(tiny), **options, threads=2) as llm:
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        expected = list(llm.generate([5, 6, 7], params).tokens)
    file = tmp_path / "penstock.toml"
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in options.items()]
    file.write_text(f'[[models]]\nname = "tiny"\nmodel = "{tiny}"\n{"".join(lines)}')
    with Server(f"--config={file}", f"--cluster={nodes.cluster.address}") as server, ThreadPoolExecutor(4) as threads:

        def group() -> list[int]:
            """Process ids of its ranks; none while there is no engine."""
            pid = httpx.get(f"{server.url}/observe/facts", timeout=PATIENCE_S).json()["engine"].get("pid")
            return [] if pid is None or not ready(server) or all_gone([pid]) else [pid, *other_ranks(pid)]

        def kill_node(pid: int) -> None:
            host = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[-2]
            nodes.kill(next(node for node in nodes.nodes if node.node_ip_address == host))

        assert complete(server, [5, 6, 7]) == expected
        for end in (lambda ranks: os.kill(ranks[1], signal.SIGKILL), lambda ranks: kill_node(ranks[0])):
            ranks = group()
            assert len(ranks) == 2
            assert "CUDA_VISIBLE_DEVICES=0,1" in Path(f"/proc/{ranks[0]}/environ").read_text().split("\0")
            asking = [threads.submit(generate, server) for _ in range(4)]
            until(lambda: server.metric("num_requests_running") == 4, "requests that run")
            end(ranks)
            until(partial(all_gone, ranks), "the end of the whole group")
            until(lambda: len(group()) == 2, "another group")
            assert [one.result(PATIENCE_S) for one in asking] == [300] * 4


def test_auto_starts_a_cluster_on_this_machine(tiny: Path) -> None:
    with Server(tiny, "--cluster=auto", "--kv-memory=60MB") as server:
        answer = httpx.post(
            f"{server.url}/v1/completions", json={"prompt": "once", "max_tokens": 4}, timeout=PATIENCE_S
        )
        assert answer.status_code == 200


def listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def test_a_cluster_that_wants_its_token(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ray start` makes one. Ray sends no token by itself to a cluster whose address it is given."""
    (tmp_path / "token").write_text("0" * 32)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    host, port = "127.0.0.2", reserve_port()
    head = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--port", str(port), "--num-cpus=1"]
    options = [f"--node-ip-address={host}", f"--object-store-memory={STORE_BYTES}", "--include-dashboard=false"]
    options += ["--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats"]
    with (
        tempfile.TemporaryDirectory(prefix="ray-") as folder,  # with sockets, whose paths are bounded
        subprocess.Popen([*head, *options, f"--temp-dir={folder}"]) as ray,
    ):
        try:
            until(partial(listens, host, port), "the head of the cluster")
            with Server(tiny, f"--cluster={host}:{port}", "--kv-memory=60MB") as server:
                asked = httpx.post(f"{server.url}/v1/completions", json={"prompt": "once"}, timeout=PATIENCE_S)
                assert asked.status_code == 200
            monkeypatch.delenv("RAY_AUTH_MODE")
            with pytest.raises(AssertionError, match=r"or it wants its token, .* RAY_AUTH_MODE=token"):
                Server(tiny, f"--cluster={host}:{port}")
        finally:
            ray.terminate()
