"""Posts alerts to the configured URL from a thread of its own, with a bounded queue and retries."""

from __future__ import annotations

import base64
import logging
import queue
import threading
import time
import urllib.request
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec

logger = logging.getLogger(__name__)

MAX_QUEUED = 100
TRIES = 3
TIMEOUT_S = 5.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Redirects are not followed: alerts go to the configured host only."""
        return


class Webhook:
    """The URL may hold a secret: neither it nor the response is logged."""

    def __init__(self, url: str, *, pause_s: float = 1.0) -> None:
        parts = urlsplit(url)
        userinfo, _, place = parts.netloc.rpartition("@")
        self._url = parts._replace(netloc=place).geturl()
        self._headers = {"content-type": "application/json", **_authorization(userinfo)}
        self._pause_s = pause_s
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._waiting: queue.Queue[dict[str, Any]] = queue.Queue(MAX_QUEUED)
        self._thread: threading.Thread | None = None

    def post(self, alert: dict[str, Any]) -> None:
        """Queue an alert; does not wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="webhook", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            logger.warning("the webhook queue is full: an alert is dropped")

    def _work(self) -> None:
        while True:
            alert = self._waiting.get()
            for trial in range(TRIES):
                if self._send(alert):
                    break
                time.sleep(self._pause_s * 2**trial)
            else:
                logger.warning("the webhook did not accept alert %s in %d tries", alert.get("id"), TRIES)

    def _send(self, alert: dict[str, Any]) -> bool:
        state = "open" if alert["until"] is None else "over"
        body = msgspec.json.encode({"source": "penstock", "state": state, **alert})
        try:
            request = urllib.request.Request(self._url, body, self._headers)  # noqa: S310
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return bool(200 <= answer.status < 300)
        except Exception as error:  # OSError, HTTPException for a malformed response, ValueError
            logger.debug("webhook: %s", type(error).__name__)
            return False


def _authorization(userinfo: str) -> dict[str, str]:
    """`user:password` of the URL as a header: urllib would take it for part of the host."""
    if not userinfo:
        return {}
    user, _, password = userinfo.partition(":")
    pair = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
    return {"authorization": f"Basic {base64.b64encode(pair).decode()}"}
