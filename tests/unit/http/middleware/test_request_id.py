from __future__ import annotations

from helpers import guarded_app


def test_the_id_of_a_request_is_where_either_kind_of_client_looks_for_it() -> None:
    _, headers = guarded_app.request(("x-api-key", "one"), ("x-request-id", "mine"))

    assert (headers[b"x-request-id"], headers[b"request-id"]) == (b"mine", b"mine")
