"""Hub ids: through a stand-in for the client, and through the real client against a stand-in for the hub."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from helpers.store_samples import write_hf_folder
from penstock.errors import ModelNotFound, PullFailed
from penstock.store import hub
from penstock.store.progress import Progress
from penstock.store.resolve import resolve

HUB_ID = "some-org/some-model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
RESOLVE = """
import json, sys
from pathlib import Path
from penstock.errors import PenstockError
from penstock.store.resolve import resolve

name, cache, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
seen = []
try:
    files = resolve(name, cache=cache, progress=lambda *event: seen.append(event), **options)
    print(json.dumps({"weights": [str(path) for path in files.weights], "progress": seen[-1:]}))
except PenstockError as error:
    print(json.dumps({"error": type(error).__name__, "message": error.message}))
"""


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    folder = write_hf_folder(tmp_path / "snapshot")
    (folder / "consolidated.safetensors").write_bytes(b"the same once more")
    (folder / "README.md").write_text("# Read me")
    return folder


class StandIn:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[tuple[str, bool]] = []
        self.patterns: tuple[str, ...] = ()

    def __call__(self, hub_id: str, patterns: tuple[str, ...], progress: Progress, *, offline: bool) -> Path:
        self.calls.append((hub_id, offline))
        self.patterns = patterns
        return self.folder


def test_a_snapshot_is_fetched_once(snapshot: Path, tmp_path: Path) -> None:
    fetch = StandIn(snapshot)
    first = resolve(HUB_ID, cache=tmp_path / "cache", fetch=fetch)
    assert (first.name, first.weights) == (HUB_ID, (snapshot / "model.safetensors",))
    assert resolve(HUB_ID, cache=tmp_path / "cache", fetch=fetch, offline=True) == first
    assert fetch.calls == [(HUB_ID, False)]


def test_a_snapshot_that_is_gone_is_fetched_again(snapshot: Path, tmp_path: Path) -> None:
    fetch = StandIn(snapshot)
    resolve(HUB_ID, cache=tmp_path / "cache", fetch=fetch)
    fetch.folder = snapshot.rename(tmp_path / "elsewhere")  # as when somebody clears the hub's cache
    assert resolve(HUB_ID, cache=tmp_path / "cache", fetch=fetch).weights == (fetch.folder / "model.safetensors",)
    assert len(fetch.calls) == 2


def test_config_alone(snapshot: Path, tmp_path: Path) -> None:
    (snapshot / "model.safetensors").unlink()
    (snapshot / "consolidated.safetensors").unlink()
    fetch = StandIn(snapshot)
    assert resolve(HUB_ID, cache=tmp_path / "cache", fetch=fetch, weights=False).weights == ()
    assert fetch.patterns == hub.FACTS
    resolve(HUB_ID, cache=tmp_path / "cache", fetch=fetch, weights=False)
    assert len(fetch.calls) == 2  # an incomplete snapshot is not taken for the model


class Hub(BaseHTTPRequestHandler):
    """The three requests a snapshot takes, answered from a folder."""

    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        files = {file.name: file.read_bytes() for file in self.folder.iterdir()}
        if path == f"/api/models/{HUB_ID}/revision/main":
            return self.answer(200, {"id": HUB_ID, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]})
        if path == f"/api/models/{HUB_ID}/tree/{COMMIT}":
            oid = [hashlib.sha1(content).hexdigest() for content in files.values()]
            rows = zip(files.items(), oid, strict=True)
            return self.answer(
                200, [{"type": "file", "path": n, "size": len(content), "oid": o} for (n, content), o in rows]
            )
        name = path.removeprefix(f"/{HUB_ID}/resolve/{COMMIT}/")
        if name in files:
            return self.answer(200, files[name])
        if path.startswith("/api/models/gated-org"):
            return self.answer(403, {}, {"X-Error-Code": "GatedRepo"})
        return self.answer(404, {}, {"X-Error-Code": "RepoNotFound"})

    def answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Machine:
    """A machine of its own: its caches, and a hub at `endpoint`."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.cache = folder / "cache"
        self.hub_cache = folder / "hf"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "HF_HOME": str(self.hub_cache),
            "HF_ENDPOINT": endpoint,
            "HF_HUB_DISABLE_XET": "1",
        }

    def resolve(self, name: str, **options: Any) -> dict[str, Any]:
        command = [sys.executable, "-c", RESOLVE, name, str(self.cache), json.dumps(options)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return dict(json.loads(done.stdout))


@pytest.fixture
def server(snapshot: Path) -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Hub,), {"folder": snapshot, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def machine(tmp_path: Path, server: ThreadingHTTPServer) -> Machine:
    return Machine(tmp_path, f"http://127.0.0.1:{server.server_port}")


def test_real_client(machine: Machine, server: ThreadingHTTPServer, snapshot: Path) -> None:
    answer = machine.resolve(HUB_ID)
    (weights,) = answer["weights"]
    assert Path(weights).read_bytes() == (snapshot / "model.safetensors").read_bytes()
    assert Path(weights).is_relative_to(machine.hub_cache)
    (last,) = answer["progress"]
    assert last[0] == HUB_ID
    assert last[1] >= (snapshot / "model.safetensors").stat().st_size
    asked = server.RequestHandlerClass.asked  # type: ignore[attr-defined]
    assert not any("consolidated" in path or "README" in path for path in asked)
    number = len(asked)
    assert machine.resolve(HUB_ID)["weights"] == [weights]
    assert machine.resolve(HUB_ID, offline=True)["weights"] == [weights]
    assert len(asked) == number


def test_offline_finds_what_other_tools_have_fetched(machine: Machine) -> None:
    machine.resolve(HUB_ID)
    machine.cache = machine.cache / "another"
    assert machine.resolve(HUB_ID, offline=True)["weights"]


def test_real_client_errors(machine: Machine) -> None:
    missing = machine.resolve("no-org/no-model")
    assert missing["error"] == ModelNotFound.__name__
    assert "no folder no-org/no-model, and the hub has no model" in missing["message"]
    gated = machine.resolve("gated-org/model")
    assert (gated["error"], "hf auth login" in gated["message"]) == (PullFailed.__name__, True)
    offline = machine.resolve(HUB_ID, offline=True)
    assert (offline["error"], "offline" in offline["message"]) == (ModelNotFound.__name__, True)
    machine.environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
    unreachable = machine.resolve(HUB_ID)
    assert (unreachable["error"], "cannot be reached" in unreachable["message"]) == (hub.HubUnreachable.__name__, True)
