"""A small MCP server (Streamable HTTP) on loopback: one tool, sessions, answers as JSON or as an event stream, CORS."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

SESSION = "session-1"
TOOL = {
    "name": "ring.bell",
    "description": "Rings the bell a number of times.",
    "inputSchema": {"type": "object", "properties": {"times": {"type": "integer"}}, "required": ["times"]},
}


class McpServer:
    """`received` are the messages it got; `origin` is the page that it allows."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.origin = ""
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        cast(Any, self._http).mcp = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/mcp"

    def __enter__(self) -> McpServer:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            server = {"name": "bells", "title": "Bells"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
        if method == "tools/list":
            return {"tools": [TOOL]}
        assert method == "tools/call"
        assert params["name"] == TOOL["name"]
        return {"content": [{"type": "text", "text": "<b>dong</b> " * params["arguments"]["times"]}]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def mcp(self) -> McpServer:
        return cast(McpServer, cast(Any, self.server).mcp)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", kind: str = "application/json") -> None:
        self.send_response(status)
        headers = {
            "content-type": kind,
            "content-length": str(len(body)),
            "access-control-allow-origin": self.mcp.origin,
            "access-control-allow-methods": "POST, DELETE",
            "access-control-allow-headers": "*, authorization",
            "access-control-expose-headers": "mcp-session-id",
            "mcp-session-id": SESSION,
        }
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_OPTIONS(self) -> None:
        self._answer(204)

    def do_DELETE(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asks = message["method"]
        self.mcp.received.append({**message, "session": self.headers["mcp-session-id"]})
        if asks != "initialize" and self.headers["mcp-session-id"] != SESSION:
            self._answer(400, b"no session")
        elif "id" not in message:
            self._answer(202)
        else:
            reply = {"jsonrpc": "2.0", "id": message["id"], "result": self.mcp.result(asks, message.get("params", {}))}
            text = json.dumps(reply)
            if asks == "tools/call":
                note = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}})
                self._answer(200, f"event: message\ndata: {note}\n\ndata: {text}\n\n".encode(), "text/event-stream")
            else:
                self._answer(200, text.encode())
