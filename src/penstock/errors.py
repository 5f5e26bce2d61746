"""Every error Penstock raises on purpose, with its HTTP status.

    PenstockError                    500  internal
    ├── InvalidRequest               400  a field is invalid; `param` names it
    │   ├── ContextOverflow          400  prompt and max_tokens exceed the context
    │   └── ContentRejected          400  a safety rule matches the input
    ├── InvalidSetting               400  a setting is invalid; `param` names it
    ├── Unauthorized                 401  missing or invalid API key
    │   ├── KeyRevoked               401  it was valid
    │   └── KeyExpired               401
    ├── Forbidden                    403  the API key lacks a scope
    ├── NotFound                     404  no such route, method or object
    │   └── MethodNotAllowed         405
    ├── ModelNotFound                404  no such model, file or catalogue entry
    ├── ModelInvalid                 422  the files exist but cannot be used
    │   ├── ArchitectureUnsupported  422
    │   └── WeightsMismatch          422  tensors missing or unexpected
    ├── AdapterLoadFailed            422  an adapter's files cannot be read or do not fit its base model
    ├── AlreadyExists                409  another object has the name
    ├── AdapterBusy                  504  an adapter is removed, but requests of it still run
    ├── PullFailed                   502  the download of a model failed
    ├── OutOfMemory                  507  the model or its cache does not fit
    ├── StorageFull                  507  no room on disk for a file
    ├── StorageUnavailable           503  the data folder is in use or cannot be used
    ├── RequestTooLarge              413  the body exceeds max_body
    ├── OriginNotAllowed             403  a web page of another origin
    ├── HostNotAllowed               421  the Host header is not an accepted name
    ├── MediaTypeUnsupported         415  the content type is not JSON
    ├── QueueFull                    429  max_waiting sequences are waiting
    ├── RateLimited                  429  a limit of the key or tenant; `retry_after_s` says when it may fit
    │   └── BudgetExhausted          429  the budget of the key or tenant, for the day or month
    ├── LimitsUnavailable            503  the store of limits does not answer, and `limits_unavailable` is closed
    ├── LedgerUnavailable            503  usage cannot be recorded, and `limits_unavailable` is closed
    ├── SafetyUnavailable            503  the safety rules could not be checked
    ├── ModelLoading                 503  the server is starting; Retry-After says when to come back
    ├── UpstreamBusy                 429  an upstream is overloaded; `retry_after_s` says for how long
    ├── UpstreamFailed               502  an upstream failed, or its answer is invalid
    ├── UpstreamTimeout              504  no output in time, from an upstream or an engine
    ├── EngineDied                   503  the engine process died; the request may be retried
    └── ShuttingDown                 503  the server accepts no more requests

Only `http` maps these to HTTP responses; all other modules raise them with a message that a user can act on.
"""

from __future__ import annotations

from collections.abc import Iterable


class PenstockError(Exception):
    status = 500
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s: float | None = None  # for the client; None: the default of its status
        self.headers: dict[str, str] = {}  # of the response, beside Retry-After


class InvalidRequest(PenstockError):
    status = 400
    code = "invalid_request"


class ContextOverflow(InvalidRequest):
    code = "context_length_exceeded"


class ContentRejected(InvalidRequest):
    code = "content_filter"


class InvalidSetting(PenstockError):
    status = 400
    code = "invalid_setting"


class Unauthorized(PenstockError):
    status = 401
    code = "invalid_api_key"


class KeyRevoked(Unauthorized):
    code = "key_revoked"


class KeyExpired(Unauthorized):
    code = "key_expired"


class Forbidden(PenstockError):
    status = 403
    code = "forbidden"


class NotFound(PenstockError):
    status = 404
    code = "not_found"


class MethodNotAllowed(NotFound):
    status = 405
    code = "method_not_allowed"


class ModelNotFound(PenstockError):
    status = 404
    code = "model_not_found"


class ModelInvalid(PenstockError):
    status = 422
    code = "model_invalid"


class ArchitectureUnsupported(ModelInvalid):
    code = "architecture_unsupported"


class WeightsMismatch(ModelInvalid):
    code = "weights_mismatch"


class AdapterLoadFailed(PenstockError):
    status = 422
    code = "adapter_load_failed"


class AlreadyExists(PenstockError):
    status = 409
    code = "already_exists"


class AdapterBusy(PenstockError):
    status = 504
    code = "adapter_busy"


class PullFailed(PenstockError):
    status = 502
    code = "pull_failed"


class OutOfMemory(PenstockError):
    status = 507
    code = "out_of_memory"


class StorageFull(PenstockError):
    status = 507
    code = "storage_full"


class StorageUnavailable(PenstockError):
    status = 503
    code = "storage_unavailable"


class RequestTooLarge(PenstockError):
    status = 413
    code = "request_too_large"


class OriginNotAllowed(PenstockError):
    status = 403
    code = "origin_not_allowed"


class HostNotAllowed(PenstockError):
    status = 421
    code = "host_not_allowed"


class MediaTypeUnsupported(PenstockError):
    status = 415
    code = "media_type_unsupported"


class QueueFull(PenstockError):
    status = 429
    code = "queue_full"


class RateLimited(PenstockError):
    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, param: str | None = None, owner: str = "key", limit: str = "") -> None:
        """`owner` is "key" or "tenant", `limit` a field of `Limits`."""
        super().__init__(message, param=param)
        self.owner, self.limit = owner, limit


class BudgetExhausted(RateLimited):
    code = "insufficient_quota"


class LimitsUnavailable(PenstockError):
    status = 503
    code = "limits_unavailable"


class LedgerUnavailable(PenstockError):
    status = 503
    code = "ledger_unavailable"


class SafetyUnavailable(PenstockError):
    status = 503
    code = "safety_unavailable"


class ModelLoading(PenstockError):
    status = 503
    code = "model_loading"


class UpstreamBusy(PenstockError):
    status = 429
    code = "upstream_busy"


class UpstreamFailed(PenstockError):
    status = 502
    code = "upstream_failed"


class UpstreamTimeout(PenstockError):
    status = 504
    code = "upstream_timeout"


class EngineDied(PenstockError):
    status = 503
    code = "engine_died"


class ShuttingDown(PenstockError):
    status = 503
    code = "shutting_down"


def by_code(code: str | None, message: str, param: str | None = None) -> PenstockError:
    """The error class of a code that another process sent."""
    return _by_code(PenstockError).get(code or "", PenstockError)(message, param=param)


def _by_code(root: type[PenstockError]) -> dict[str, type[PenstockError]]:
    errors = {root.code: root}
    for child in root.__subclasses__():
        errors |= _by_code(child)
    return errors


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """For the end of a message about an unknown name: "; did you mean port?", or nothing. `cutoff`: from 0, any name,
    to 1, the same name."""
    import difflib  # no start needs it

    close = difflib.get_close_matches(name[:64], list(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]}?" if close else ""
