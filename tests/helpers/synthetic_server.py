"""Serves the web interface and its observe routes from `synthetic_load`, so that UI smoothness is measured without an
engine on the same machine."""

from __future__ import annotations

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from helpers.synthetic_load import STEPS, SyntheticLoad, detail, facts, history, pipeline, ticks, tree

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Handler(BaseHTTPRequestHandler):
    load: SyntheticLoad
    dist: Path
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _send(self, data: bytes, kind: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path.startswith("/ui"):
            name = url.path.removeprefix("/ui").strip("/") or "index.html"
            file = self.dist / name
            self._send(file.read_bytes(), TYPES.get(file.suffix, "text/plain"))
        elif url.path == "/observe/live":
            self._live(int(asked.get("interval_ms", "500")) / 1000, asked.get("steps") == "1")
        elif (answer := self._answer(url.path, asked)) is not None:
            self._send(json.dumps(answer).encode())
        else:
            self._send(b'{"error":{"message":"not recorded"}}', status=404)

    def _answer(self, path: str, asked: dict[str, str]) -> Any:
        load = self.load
        if path == "/observe/steps":
            end = int(asked.get("to", STEPS))
            start = int(asked["from"]) if "from" in asked else max(1, end - int(asked.get("last", "400")) + 1)
            return load.window(
                max(1, start), min(end, STEPS), int(asked.get("columns", "2000")), rows=asked.get("rows") != "0"
            )
        if path == "/observe/requests":
            lives = [life for life in load.lives if life.queued <= STEPS][-int(asked.get("limit", "100")) :]
            return {
                "requests": [load.summary(life, STEPS) for life in lives[::-1]],
                "more": False,
                "kept": 2000,
                "total": len(lives),
            }
        if match := re.fullmatch(r"/observe/requests/(\d+)", path):
            return detail(load, load.lives[int(match[1]) - 1])
        fixed = {
            "/health": lambda: {"status": "ok"},
            "/observe/facts": lambda: facts(load),
            "/observe/cache": lambda: load.page_map(STEPS),
            "/observe/cache/tree": tree,
            "/observe/history": history,
            "/observe/pipeline": pipeline,
            "/slo": lambda: {"t": 0, "window_s": 300, "objectives": [], "alerts": [], "recent": [], "webhook": False},
            "/observe/replay": lambda: {
                "computed": True,
                "note": "",
                "batch": 8,
                "cost": None,
                "requests": [],
                "static": None,
                "continuous": None,
            },
            "/v1/models": lambda: {"data": [{"id": "recorded"}]},
        }
        return fixed[path]() if path in fixed else None

    def _live(self, interval: float, steps: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for number, tick in enumerate(ticks(self.load, steps)):
                self.wfile.write(f"event: tick\ndata: {json.dumps(tick)}\n\n".encode())
                self.wfile.flush()
                time.sleep(interval)
                if number > 3600:
                    return
        except (BrokenPipeError, ConnectionResetError):
            return


class SyntheticServer:
    def __init__(self, dist: Path) -> None:
        handler = type("Bound", (Handler,), {"load": SyntheticLoad(), "dist": dist})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def __enter__(self) -> SyntheticServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
