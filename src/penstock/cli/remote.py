"""A client of a running server for commands, on the standard library."""

from __future__ import annotations

import http.client
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from penstock.errors import InvalidSetting, PenstockError, Unauthorized, by_code

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 10.0
COPY_BYTES = 1 << 18


class ServerSilent(PenstockError):
    """No server answers there, or not a Penstock server."""

    status = 503
    code = "server_silent"


def key_option(command: Command) -> Command:
    option = click.option("--api-key", envvar="PENSTOCK_API_KEY", help="API key of the server, if it requires one.")
    return option(command)


def server_option(command: Command) -> Command:
    option = click.option("--server", "--url", "url", default=DEFAULT_URL, show_default=True, help="The server.")
    return key_option(option(command))


class Remote:
    def __init__(self, url: str, key: str | None = None) -> None:
        """`url`: with or without /v1."""
        self.url = _check_url(url if "://" in url else f"http://{url}")
        self.headers = {"authorization": f"Bearer {key.split(',')[0].strip()}"} if key else {}

    def get(self, path: str, timeout_s: float | None = None) -> Any:
        return self._decode(path, self._ask(path, None, timeout_s))

    def post(self, path: str, body: Any, timeout_s: float | None = None) -> Any:
        return self._decode(path, self._ask(path, msgspec.json.encode(body), timeout_s))

    def delete(self, path: str, timeout_s: float | None = None) -> Any:
        return self._decode(path, self._ask(path, None, timeout_s, method="DELETE"))

    def upload(self, path: str, fields: Mapping[str, str], files: Mapping[str, Path], timeout_s: float) -> Any:
        """A multipart form. Files are sent as they are read."""
        boundary = secrets.token_hex(16)
        part = f'--{boundary}\r\ncontent-disposition: form-data; name="{{}}"'
        heads = [f"{part.format(name)}\r\n\r\n{value}\r\n".encode() for name, value in fields.items()]
        begins = {name: f'{part.format(name)}; filename="{name}"\r\n\r\n'.encode() for name in files}
        end = f"--{boundary}--\r\n".encode()
        sizes = [len(begins[name]) + file.stat().st_size + 2 for name, file in files.items()]
        headers = {
            "content-type": f"multipart/form-data; boundary={boundary}",
            "content-length": str(sum(map(len, heads)) + sum(sizes) + len(end)),
        }

        def body() -> Iterator[bytes]:
            yield from heads
            for name, file in files.items():
                yield begins[name]
                with file.open("rb") as opened:
                    while block := opened.read(COPY_BYTES):
                        yield block
                yield b"\r\n"
            yield end

        return self._decode(path, self._ask(path, body(), timeout_s, headers=headers))

    def text(self, path: str) -> str:
        return self._ask(path, None).decode()

    def stream(self, path: str, body: Any, timeout_s: float) -> Iterator[Any]:
        """The events of a streamed answer in OpenAI's format, until [DONE]. Raises the error that ends one."""
        with self._open_answer(path, msgspec.json.encode(body), timeout_s) as answer:
            for line in answer:
                data = line.removeprefix(b"data:").strip()
                if not line.startswith(b"data:") or not data:
                    continue
                if data == b"[DONE]":
                    return
                event = self._decode(path, data)
                if "error" in event:
                    raise self._parse_refusal(0, path, data)
                yield event

    def events(self, path: str) -> Iterator[tuple[str, Any]]:
        """Name and data of server-sent events, until the server ends the stream."""
        with self._open_answer(path, None) as answer:
            name = ""
            for line in answer:
                field, _, value = line.decode().rstrip("\r\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, self._decode(path, value.encode())

    def _ask(
        self,
        path: str,
        body: bytes | Iterator[bytes] | None,
        timeout_s: float | None = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        with self._open_answer(path, body, timeout_s, method, headers) as answer:
            return bytes(answer.read())

    @contextmanager
    def _open_answer(
        self,
        path: str,
        body: bytes | Iterator[bytes] | None,
        timeout_s: float | None = None,
        method: str | None = None,
        more_headers: Mapping[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        timeout_s = timeout_s or TIMEOUT_S
        kind = {"content-type": "application/json"} if body is not None else {}
        headers = {**self.headers, **kind, **(more_headers or {})}
        request = urllib.request.Request(self.url + path, data=body, headers=headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
                yield answer
        except urllib.error.HTTPError as error:
            with error:
                raise self._parse_refusal(error.code, path, error.read()) from None
        except TimeoutError:
            raise ServerSilent(f"{self.url} has not answered within {timeout_s:.3g} s") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error or type(error).__name__
            raise ServerSilent(f"no server at {self.url}: {why}. Start one with `penstock serve`") from None

    def _parse_refusal(self, status: int, path: str, body: bytes) -> PenstockError:
        if status == 401:
            if self.headers:
                return Unauthorized(f"{self.url} rejects this API key (from --api-key or PENSTOCK_API_KEY)")
            return Unauthorized(f"{self.url} requires an API key: pass --api-key, or set PENSTOCK_API_KEY")
        try:
            sent = msgspec.json.decode(body)["error"]
            return by_code(sent["code"], sent["message"], sent.get("param"))
        except (msgspec.DecodeError, KeyError, TypeError):
            return ServerSilent(f"{self.url}{path} answered {status}: is that a Penstock server?")

    def _decode(self, path: str, answer: bytes) -> Any:
        try:
            return msgspec.json.decode(answer)
        except msgspec.DecodeError:
            raise ServerSilent(f"{self.url}{path} did not answer in JSON: is that a Penstock server?") from None


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https"):
        raise InvalidSetting(f"the server's address must be such as {DEFAULT_URL}, got {url!r}", param="url")
    return url.rstrip("/").removesuffix("/v1")
