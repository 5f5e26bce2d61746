"""From an exception to an HTTP response, in the error format of the API that the client speaks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from starlette.responses import Response
from starlette.types import Scope

from penstock.errors import ModelLoading, PenstockError
from penstock.http.error_body import RenderedError, render_error

logger = logging.getLogger(__name__)

ErrorFormat = Callable[[BaseException, str], RenderedError]  # of an error and a request id


class ErrorFormats:
    """Error formats by path prefix or header. `app` registers that of each API; `RequestIdMiddleware` puts them into
    the scope."""

    def __init__(
        self,
        by_prefix: Mapping[str, ErrorFormat] | None = None,
        by_header: Mapping[bytes, ErrorFormat] | None = None,
    ) -> None:
        """A prefix covers whole segments: `/v1/messages` is also that of `/v1/messages/batches`. On all other paths
        clients that send a header of `by_header` get its format, and all others OpenAI's."""
        self._by_prefix = dict(by_prefix or {})
        self._by_header = dict(by_header or {})

    def for_request(self, scope: Scope) -> ErrorFormat:
        path: str = scope["path"]
        for prefix, render in self._by_prefix.items():
            if path == prefix or path.startswith(f"{prefix.rstrip('/')}/"):
                return render
        sent = {name for name, _ in scope["headers"]}
        return next((render for name, render in self._by_header.items() if name in sent), render_error)


def report_error(error: Exception, scope: Scope) -> RenderedError:
    """Renders an error, and logs it if it is the server's fault."""
    request_id = scope["state"]["request_id"]
    if not isinstance(error, PenstockError):
        logger.error("request %s failed", request_id, exc_info=error, extra={"request_id": request_id})
    elif error.status >= 500 and not isinstance(error, ModelLoading):
        logger.error("request %s failed: %s", request_id, error, extra={"request_id": request_id})
    formats: ErrorFormats = scope["state"].get("error_formats") or ErrorFormats()
    return formats.for_request(scope)(error, request_id)


def error_response(error: Exception, scope: Scope, headers: Mapping[str, str] | None = None) -> Response:
    rendered = report_error(error, scope)
    return Response(rendered.body, rendered.status, {**rendered.headers, **(headers or {})}, "application/json")
