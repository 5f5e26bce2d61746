"""/openapi.json, from the routes of the application and the schemas of their bodies."""

from __future__ import annotations

import re
from typing import Any

from penstock.gateway.keys.identity import Scope
from penstock.http.routing import ApiRoute, App

OPENAPI_VERSION = "3.1.0"
SECURITY: list[dict[str, list[str]]] = [{"key": []}, {"x-api-key": []}]  # either
SECURITY_SCHEMES = {
    "key": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def openapi_document(app: App, schemas: dict[str, Any], *, version: str, has_keys: bool) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in app.routes:
        if isinstance(route, ApiRoute) and route.include_in_schema:
            operation = _operation(route)
            if not has_keys or route.scopes is None:
                operation["responses"].pop("401", None)
            else:
                _add_security(operation, route.scopes)
            paths.setdefault(route.path_format, {})[route.documented_method] = operation
    components = {"schemas": schemas} | ({"securitySchemes": SECURITY_SCHEMES} if has_keys else {})
    info = {"title": "Penstock", "version": version}
    return {"openapi": OPENAPI_VERSION, "info": info, "paths": paths, "components": components}


def _add_security(operation: dict[str, Any], scopes: frozenset[Scope]) -> None:
    responses = operation["responses"]
    operation["security"] = SECURITY
    operation["x-scopes"] = [scope.value for scope in Scope if scope in scopes]
    lacking = f"The API key has none of these scopes: {', '.join(operation['x-scopes'])}."
    responses.setdefault("403", {**responses["401"], "description": lacking})


def _operation(route: ApiRoute) -> dict[str, Any]:
    name = route.handler.__name__
    extra = dict(route.openapi_extra)
    parameters = [*map(_path_parameter, route.param_convertors), *extra.pop("parameters", ())]
    return {
        "summary": _title(name),
        "description": (route.handler.__doc__ or "").strip(),
        "operationId": re.sub(r"\W", "_", f"{name}{route.path_format}") + f"_{route.documented_method}",
        **({"parameters": parameters} if parameters else {}),
        **extra,
        "responses": {str(status): response for status, response in route.responses.items()},
    }


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "title": _title(name)}}


def _title(name: str) -> str:
    return name.replace("_", " ").title()
