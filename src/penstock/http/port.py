"""The listening socket. It is bound before anything is loaded, so that a port in use is an error at once."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from collections.abc import Iterator

from penstock.errors import InvalidSetting
from penstock.settings import ServeSettings

BACKLOG = 2048  # connections that are not accepted yet
UNSENT_BYTES = 64 * 1024  # that the kernel buffers for a connection
OPEN_FILES = 65_536  # connections are file descriptors; the usual soft limit is 1024

_ADVICE = {
    errno.EADDRINUSE: "; choose another with --port or PENSTOCK_PORT (0 takes a free one), or make serve PORT=8001",
    errno.EACCES: "; ports from 1024 on need no rights: choose one with --port",
    errno.EADDRNOTAVAIL: "; --host must be an address of this machine",
}


def bind(settings: ServeSettings, *, shared: bool = False) -> socket.socket:
    """`shared`: others of this server may be bound beside it, but no other server's."""
    if not shared:
        return _bind(settings, settings.port, shared=False)
    with _bind(settings, settings.port, shared=False) as probe:
        port = probe.getsockname()[1]
    return _bind(settings, port, shared=True)


def bind_beside(listener: socket.socket, settings: ServeSettings) -> socket.socket:
    """Another socket on the address of one that is shared: the kernel divides connections between those that listen."""
    return _bind(settings, listener.getsockname()[1], shared=True)


def _bind(settings: ServeSettings, port: int, *, shared: bool) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if sys.platform == "linux":  # connections inherit these
        # A slow client is noticed when it is a few events behind, not megabytes.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        # A client that does not read at all would otherwise hold its connection for ever, though it is closed here.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(2 * settings.stall_s * 1000))
    with _explain_os_error(listener, f"{settings.host}:{port}"):
        listener.bind((settings.host, port))
    return listener


def raise_file_limit() -> None:
    """Raises the limit on file descriptors: connections beyond it are closed without a log line."""
    try:
        import resource
    except ImportError:  # not on all platforms
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def listen(listener: socket.socket) -> None:
    raise_file_limit()
    with _explain_os_error(listener, "{}:{}".format(*listener.getsockname()[:2])):
        listener.listen(BACKLOG)


@contextlib.contextmanager
def _explain_os_error(listener: socket.socket, where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        listener.close()
        advice = _ADVICE.get(error.errno or 0, "")
        raise InvalidSetting(f"cannot listen on {where}: {error.strerror}{advice}", param="port") from None
