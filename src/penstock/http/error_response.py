"""An error on its way to the client: told in the log where it is the server's, and made an HTTP response, in the words
of the API that the client speaks."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Scope

from penstock.errors import PenstockError
from penstock.http import error_body as openai
from penstock.http.api.anthropic import error_body as anthropic
from penstock.http.api.ollama import error_body as ollama
from penstock.http.error_body import Problem

logger = logging.getLogger(__name__)

_APIS = ((anthropic.spoken, anthropic.describe), (ollama.spoken, ollama.describe))  # all other paths are OpenAI's


def problem(error: Exception, scope: Scope) -> Problem:
    request_id = scope["state"]["request_id"]
    if not isinstance(error, PenstockError):
        logger.error("request %s failed", request_id, exc_info=error, extra={"request_id": request_id})
    elif error.status >= 500:
        logger.error("request %s failed: %s", request_id, error, extra={"request_id": request_id})
    describe = next((describe for spoken, describe in _APIS if spoken(scope["path"])), openai.describe)
    return describe(error, request_id)


def failure(error: Exception, scope: Scope, headers: Mapping[str, str] | None = None) -> Response:
    told = problem(error, scope)
    return Response(told.body, told.status, {**told.headers, **(headers or {})}, "application/json")
