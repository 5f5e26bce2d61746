"""Handlers get what they name; /openapi.json has the routes that are documented."""

from __future__ import annotations

from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient

from penstock.gateway.keys.identity import ALL_SCOPES, Identity, Scope
from penstock.http import exception_handlers
from penstock.http.openapi import page
from penstock.http.routing import App


def app(*, has_keys: bool = False) -> App:
    made = App()
    answer = {"responses": {200: {"description": "The answer."}, 401: {"description": "No key."}}}

    @made.requiring(Scope.INFERENCE, Scope.OBSERVE).get(
        "/parts/{name:path}", **answer, openapi_extra={"parameters": [{"name": "limit", "in": "query"}]}
    )
    async def one_part(name: str, request: Request) -> Response:
        """One part."""
        return PlainTextResponse(f"{request.method} {name}")

    @made.public.post("/parts", **answer)
    async def add_part() -> Response:
        return PlainTextResponse("added")

    @made.public.get("/hidden", include_in_schema=False)
    async def hidden(request: Request) -> Response:
        return PlainTextResponse(request.url.path)

    page.add(made, lambda: {"Part": {"examples": [{"size": 1}]}}, version="1", model="m", has_keys=has_keys)
    return made


def ask(method: str, path: str, *, has_keys: bool = False, scopes: frozenset[Scope] = ALL_SCOPES) -> httpx.Response:
    made = app(has_keys=has_keys)
    exception_handlers.add(made)

    async def identified(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {"identity": Identity(scopes=scopes), "request_id": "r"}
        await made(scope, receive, send)

    return TestClient(identified, follow_redirects=False).request(method, path)


def test_handlers_get_the_request_and_path_parameters_by_name() -> None:
    assert ask("GET", "/parts/a/b").text == "GET a/b"
    assert ask("POST", "/parts").text == "added"
    assert ask("GET", "/hidden").text == "/hidden"


def test_a_key_needs_one_of_the_scopes_of_a_route() -> None:
    for scope in Scope:
        expected = 403 if scope is Scope.ADMIN else 200
        assert ask("GET", "/parts/a", scopes=frozenset({scope})).status_code == expected
        assert ask("POST", "/parts", scopes=frozenset()).status_code == 200
    told = ask("GET", "/parts/a", scopes=frozenset()).json()["error"]
    assert told["code"] == "forbidden"
    assert "inference or observe" in told["message"]


def test_other_methods_and_a_slash_at_the_end_are_not_routed() -> None:
    assert ask("DELETE", "/parts").status_code == 405
    assert ask("POST", "/parts/").status_code == 405  # the route with an empty name, no redirect to /parts
    assert ask("GET", "/hidden/").status_code == 404


def test_the_document_describes_each_operation() -> None:
    document = ask("GET", "/openapi.json").json()
    assert document["paths"] == {
        "/parts/{name}": {
            "get": {
                "summary": "One Part",
                "description": "One part.",
                "operationId": "one_part_parts__name__get",
                "parameters": [
                    {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "title": "Name"}},
                    {"name": "limit", "in": "query"},
                ],
                "responses": {"200": {"description": "The answer."}},
            }
        },
        "/parts": {
            "post": {
                "summary": "Add Part",
                "description": "",
                "operationId": "add_part_parts_post",
                "responses": {"200": {"description": "The answer."}},
            }
        },
    }
    assert document["components"] == {"schemas": {"Part": {"examples": [{"size": 1, "model": "m"}]}}}


def test_the_document_says_what_needs_a_key() -> None:
    document = ask("GET", "/openapi.json", has_keys=True).json()
    add, get = document["paths"]["/parts"]["post"], document["paths"]["/parts/{name}"]["get"]
    assert "security" not in add
    assert "401" not in add["responses"]
    assert get["security"] == [{"key": []}, {"x-api-key": []}]
    assert {"401", "403"} <= get["responses"].keys()
    assert get["x-scopes"] == ["inference", "observe"]
    assert set(document["components"]["securitySchemes"]) == {"key", "x-api-key"}
