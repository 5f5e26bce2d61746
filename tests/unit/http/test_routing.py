"""Handlers get what they name; /openapi.json has the routes that are documented."""

from __future__ import annotations

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient

from penstock.http.openapi import page
from penstock.http.routing import App


def app(*, keyless: frozenset[str] | None = None) -> App:
    made = App()
    answer = {"responses": {200: {"description": "The answer."}, 401: {"description": "No key."}}}

    @made.get("/parts/{name:path}", **answer, openapi_extra={"parameters": [{"name": "limit", "in": "query"}]})
    async def one_part(name: str, request: Request) -> Response:
        """One part."""
        return PlainTextResponse(f"{request.method} {name}")

    @made.post("/parts", **answer)
    async def add_part() -> Response:
        return PlainTextResponse("added")

    @made.get("/hidden", include_in_schema=False)
    async def hidden(request: Request) -> Response:
        return PlainTextResponse(request.url.path)

    page.add(made, lambda: {"Part": {"examples": [{"size": 1}]}}, version="1", model="m", keyless=keyless)
    return made


def ask(method: str, path: str, keyless: frozenset[str] | None = None) -> httpx.Response:
    return TestClient(app(keyless=keyless), follow_redirects=False).request(method, path)


def test_handlers_get_the_request_and_path_parameters_by_name() -> None:
    assert ask("GET", "/parts/a/b").text == "GET a/b"
    assert ask("POST", "/parts").text == "added"
    assert ask("GET", "/hidden").text == "/hidden"


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
    document = ask("GET", "/openapi.json", frozenset({"/parts"})).json()
    add, get = document["paths"]["/parts"]["post"], document["paths"]["/parts/{name}"]["get"]
    assert "security" not in add
    assert "401" not in add["responses"]
    assert get["security"] == [{"key": []}, {"x-api-key": []}]
    assert "401" in get["responses"]
    assert set(document["components"]["securitySchemes"]) == {"key", "x-api-key"}
