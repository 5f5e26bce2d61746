import base64
import logging
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.server_process import until
from penstock.errors import InvalidSetting
from penstock.observe.slo.webhook import TRIES, Webhook
from penstock.settings import load


class Receiver(socketserver.StreamRequestHandler):
    """Answers with a line of the server's, HTTP or not."""

    def handle(self) -> None:
        head = list(iter(lambda: self.rfile.readline().strip().lower(), b""))
        self.server.got.append(head)  # type: ignore[attr-defined]
        length = next(int(line.split(b":")[1]) for line in head if line.startswith(b"content-length"))
        self.rfile.read(length)
        self.wfile.write(self.server.answer + b"\r\n\r\n")  # type: ignore[attr-defined]


@pytest.fixture
def receiver() -> Iterator[Any]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Receiver) as server:
        server.got, server.answer = [], b"HTTP/1.0 204 thanks"  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("userinfo", "pair"),
    [("tok:sekretpw", b"tok:sekretpw"), ("me%40here:p%3Aw%2f", b"me@here:p:w/"), ("tok", b"tok:")],
)
def test_a_password_in_the_address_is_sent_as_http_has_it(receiver: Any, userinfo: str, pair: bytes) -> None:
    url = f"http://{userinfo}@127.0.0.1:{receiver.server_address[1]}/hook?a=b"
    load({"slo_webhook": url, "slo_error_rate": 0.1}, environ={})
    Webhook(url, pause_s=0.01).post({"id": "password", "until": None})
    until(lambda: receiver.got, "the alert")
    assert receiver.got[0][0] == b"post /hook?a=b http/1.1"
    assert b"authorization: basic " + base64.b64encode(pair).lower() in receiver.got[0]
    assert f"host: 127.0.0.1:{receiver.server_address[1]}".encode() in receiver.got[0]


def test_an_answer_that_is_no_http_is_a_failed_try_and_no_more(receiver: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.answer = b"220 mail.s3cret.example"
    hook = Webhook(f"http://tok:s3cret@127.0.0.1:{receiver.server_address[1]}/s3cret", pause_s=0.01)
    for alert in ("mail 1", "mail 2"):  # ids of this test alone: an earlier one's thread may still log its own
        hook.post({"id": alert, "until": None})
        until(lambda alert=alert: f"did not accept alert {alert}" in caplog.text, "giving up")  # type: ignore[misc]
    assert len(receiver.got) == 2 * TRIES
    assert "BadStatusLine" in caplog.text
    assert "s3cret" not in caplog.text


def test_an_address_that_cannot_be_asked_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    hook = Webhook("http://127.0.0.1:9/s3cret\x01", pause_s=0.01)
    for alert in ("nowhere 1", "nowhere 2"):
        hook.post({"id": alert, "until": None})
        until(lambda alert=alert: f"did not accept alert {alert}" in caplog.text, "giving up")  # type: ignore[misc]
    assert "InvalidURL" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("place", ["tok:s3cret#x@host/", "host:s3cret/", "[::1/s3cret", ":80/s3cret", "host:0/s3cret"])
def test_an_address_without_a_host_or_with_no_port_is_refused(place: str) -> None:
    with pytest.raises(InvalidSetting, match="slo_webhook must be an http or https URL") as raised:
        load({"slo_webhook": f"http://{place}", "slo_error_rate": 0.1}, environ={})
    assert "s3cret" not in raised.value.message
