"""Hooks of the documentation site (mkdocs.yml): pages generated from the code, and links that lead out of docs/."""

from __future__ import annotations

import re
from typing import Any, get_type_hints
from unittest.mock import MagicMock

import msgspec
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

METHODS = ("get", "post", "put", "patch", "delete")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in {"reference/settings.md": settings_page(), "reference/api.md": api_page()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Files of the repository that are no part of the site are named, not linked."""
    depth = page.file.src_uri.count("/")
    return re.sub(r"\[([^\]]+)\]\(((?:\.\./)+)([^)]*)\)", lambda link: _inside(link, depth), markdown)


def _inside(link: re.Match[str], depth: int) -> str:
    return link[0] if link[2].count("../") <= depth else link[1]


def settings_page() -> str:
    from penstock.settings import ENV_PREFIX, Settings

    lines = [
        "# Settings",
        "",
        "Generated from the code. Each setting is an option (`--port`), a key of its section in the settings file "
        f"(`--config`), and a variable (`{ENV_PREFIX}PORT`); an option wins over a variable, that over the file. "
        "[SERVER.md](../SERVER.md) has `[[models]]`, `[[routes]]` and `[[safety]]`.",
    ]
    for section in msgspec.structs.fields(Settings):
        if not (isinstance(section.type, type) and issubclass(section.type, msgspec.Struct)):
            continue
        hints = get_type_hints(section.type, include_extras=True)
        default = getattr(Settings(), section.name)
        lines += ["", f"## {section.name}", "", "| setting | default | what it does |", "|---|---|---|"]
        for field in msgspec.structs.fields(section.type):
            meta = getattr(hints[field.name], "__metadata__", ())
            what = meta[-1].description if meta else ""
            value = getattr(default, field.name)
            shown = "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"
            lines.append(f"| `{field.name}` | {shown} | {_cell(what or '')} |")
    return "\n".join(lines) + "\n"


def api_page() -> str:
    document = openapi()
    lines = [
        "# HTTP API",
        "",
        "Generated from the OpenAPI document that a server has at `/openapi.json`; `/docs` shows it.",
    ]
    schemas = document.get("components", {}).get("schemas", {})
    for path, operations in document["paths"].items():
        for method in METHODS:
            if (operation := operations.get(method)) is None:
                continue
            lines += [
                "",
                f"## {method.upper()} {path}",
                "",
                _cell(operation.get("description") or operation["summary"]),
            ]
            lines += _parameters(operation.get("parameters", ()))
            lines += _body(operation, schemas)
    return "\n".join(lines) + "\n"


def _parameters(parameters: Any) -> list[str]:
    rows = [f"| `{one['name']}` | {one['in']} | {_cell(one.get('description', ''))} |" for one in parameters]
    return ["", "| parameter | in | |", "|---|---|---|", *rows] if rows else []


def _body(operation: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    schema = schemas.get(content.get("$ref", "").rpartition("/")[2], content)
    rows = []
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        mark = "yes" if name in required else ""
        rows.append(f"| `{name}` | {_type(field)} | {mark} | {_cell(field.get('description', ''))} |")
    return ["", "| field | type | required | |", "|---|---|---|---|", *rows] if rows else []


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return field["$ref"].rpartition("/")[2]
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(one) for one in field["anyOf"] if one.get("type") != "null")) or "any"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"][:8])
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return str(field.get("const", field.get("type", "any")))


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").strip()


def openapi() -> dict[str, Any]:
    """The document of a server with keys and a ledger, which has all routes. Its parts are stand-ins: no route runs."""
    from penstock import __version__
    from penstock.http import app as http_app
    from penstock.http import openapi_bodies
    from penstock.http.openapi.document import openapi_document
    from penstock.http.routing import App
    from penstock.settings import load

    app = App()
    settings = load({"keys": True, "ledger": True}, environ={})
    http_app._add_routes(app, MagicMock(), settings, MagicMock())
    return openapi_document(app, openapi_bodies.components(), version=__version__, has_keys=True)
