"""Every error Penstock raises on purpose, and what each one means to a client.

    PenstockError                    500  internal
    ├── InvalidRequest               400  a request's field is wrong; `param` names it
    │   └── ContextOverflow          400  prompt and requested output do not fit the context
    ├── InvalidSetting               400  a setting is wrong; `param` names it
    ├── Unauthorized                 401  no API key, or a wrong one
    ├── NotFound                     404  no such page, method or object
    │   └── MethodNotAllowed         405
    ├── ModelNotFound                404  no such model, file or catalogue entry
    ├── ModelInvalid                 422  the files are there but cannot be used
    │   ├── ArchitectureUnsupported  422
    │   └── WeightsMismatch          422  tensors missing or left over
    ├── PullFailed                   502  the source of a model did not deliver it
    ├── OutOfMemory                  507  the model or its cache does not fit
    ├── RequestTooLarge              413  more bytes than the server reads
    ├── HostNotAllowed               421  sent to a name that the server does not answer to
    ├── MediaTypeUnsupported         415  a body that is not JSON, by its own account
    ├── QueueFull                    429
    ├── EngineDied                   503  the engine process is gone; the request may be sent again
    └── ShuttingDown                 503  the server takes no more requests

Only `intake` turns these into HTTP; everybody else raises them with a sentence a user can act on.
"""

from __future__ import annotations


class PenstockError(Exception):
    status = 500
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(PenstockError):
    status = 400
    code = "invalid_request"


class ContextOverflow(InvalidRequest):
    code = "context_length_exceeded"


class InvalidSetting(PenstockError):
    status = 400
    code = "invalid_setting"


class Unauthorized(PenstockError):
    status = 401
    code = "invalid_api_key"


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


class PullFailed(PenstockError):
    status = 502
    code = "pull_failed"


class OutOfMemory(PenstockError):
    status = 507
    code = "out_of_memory"


class RequestTooLarge(PenstockError):
    status = 413
    code = "request_too_large"


class HostNotAllowed(PenstockError):
    status = 421
    code = "host_not_allowed"


class MediaTypeUnsupported(PenstockError):
    status = 415
    code = "media_type_unsupported"


class QueueFull(PenstockError):
    status = 429
    code = "queue_full"


class EngineDied(PenstockError):
    status = 503
    code = "engine_died"


class ShuttingDown(PenstockError):
    status = 503
    code = "shutting_down"


def by_code(code: str | None, message: str, param: str | None = None) -> PenstockError:
    """The error another process described by its code."""
    return _leaves(PenstockError).get(code or "", PenstockError)(message, param=param)


def _leaves(root: type[PenstockError]) -> dict[str, type[PenstockError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _leaves(child)
    return found
