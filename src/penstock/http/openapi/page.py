"""/openapi.json, and /docs made from it: one page without scripts or external files."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from starlette.responses import HTMLResponse, Response

from penstock.gateway.keys.identity import Scope
from penstock.http.json_response import encode_response
from penstock.http.openapi.document import openapi_document
from penstock.http.routing import App

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
:root { color-scheme: light dark }
.verb { display: inline-block; min-width: 3.5rem; font-weight: 700 }
details { border: 1px solid #8884; border-radius: 6px; margin: .5rem 0; padding: .5rem 1rem }
table { border-collapse: collapse; width: 100% }
td { border-top: 1px solid #8883; padding: .3rem .6rem .3rem 0; vertical-align: top; overflow-wrap: anywhere }
td:first-child { width: 16rem }
@media (max-width: 40rem) { td, td:first-child { display: block; width: auto } td + td { border: 0; padding-top: 0 } }
pre { overflow-x: auto; background: #8881; padding: .6rem; border-radius: 6px }
"""
POLICY = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}


def add(app: App, components: Callable[[], dict[str, Any]], *, version: str, model: str, has_keys: bool) -> None:
    """`components` makes the schemas of the bodies, at the first request. `model` is put into the examples."""

    @cache
    def document() -> dict[str, Any]:
        schemas = components()
        for schema in schemas.values():
            if "examples" in schema:
                schema["examples"] = [{**example, "model": model} for example in schema["examples"]]
        return openapi_document(app, schemas, version=version, has_keys=has_keys)

    any_key = app.requiring(*Scope)

    @any_key.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return encode_response(await asyncio.to_thread(document))

    @any_key.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(await asyncio.to_thread(lambda: page(document())), headers=POLICY)


def page(document: dict[str, Any]) -> str:
    schemas = document["components"]["schemas"]
    sections = [
        _operation(verb.upper(), path, operation, schemas)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    ]
    title = f"{document['info']['title']} {document['info']['version']}"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<meta name=viewport content='width=device-width'><style>{STYLE}</style><h1>{html.escape(title)}</h1>"
        "<p>A route opens to its fields and answers. The same as a document for machines: "
        "<a href=/openapi.json>/openapi.json</a>.</p>" + "".join(sections)
    )


def _operation(verb: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    text = _prose(operation.get("description", ""))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    fields = _fields(_resolve(body, schemas), schemas) if body else ""
    answers = "".join(
        f"<tr><td><code>{status}</code><td>{_prose(answer['description'])}"
        for status, answer in operation["responses"].items()
    )
    parameters = "".join(
        f"<tr><td><code>{html.escape(one['name'])}</code><td>{_prose(one['description'])}"
        for one in operation.get("parameters", ())
        if one["in"] == "query"
    )
    query = f"<h4>Parameters</h4><table>{parameters}</table>" if parameters else ""
    return (
        f"<details><summary><span class=verb>{verb}</span> <code>{html.escape(path)}</code> {text}</summary>"
        f"{query}{fields}<h4>Answers</h4><table>{answers}</table></details>"
    )


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    required = schema.get("required", [])

    def place(entry: tuple[str, dict[str, Any]]) -> int:
        """Required fields first, extensions last."""
        name, field = entry
        return 0 if name in required else 2 if field.get("description", "").startswith("Extension") else 1

    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code>{' (required)' if name in required else ''}"
        f"<td>{_prose(field.get('description', ''))}"
        for name, field in sorted(schema.get("properties", {}).items(), key=place)
    )
    examples = "".join(
        f"<pre>{html.escape(json.dumps(example, indent=2))}</pre>" for example in schema.get("examples", [])
    )
    return f"<h4>Body</h4>{examples}<table>{rows}</table>"


def _prose(text: str) -> str:
    """Escaped, with backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _resolve(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found
