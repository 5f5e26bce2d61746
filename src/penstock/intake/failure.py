"""An error as a finished HTTP response."""

from __future__ import annotations

import logging

from starlette.responses import Response
from starlette.types import Scope

from penstock.errors import PenstockError
from penstock.intake.problems import describe

logger = logging.getLogger(__name__)


def failure(error: Exception, scope: Scope) -> Response:
    request_id = scope["state"]["request_id"]
    if not isinstance(error, PenstockError) or error.status >= 500:
        logger.error("request %s failed: %s", request_id, error, exc_info=error)
    told = describe(error, request_id)
    return Response(told.body, told.status, told.headers, "application/json")
