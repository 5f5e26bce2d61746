"""What each command and process loads before it needs it: a slow import would delay every start."""

from __future__ import annotations

import subprocess
import sys

import pytest

WEB = ("starlette", "uvicorn", "pydantic", "prometheus_client")
TEXT = ("jinja2", "tokenizers", "llguidance")
TOOLS = ("rich", "huggingface_hub", "opentelemetry", "aiohttp", "sqlite3", "redis", "sqlalchemy", "alembic", "psycopg")
ENGINE = ("numpy", "torch", "triton", "zmq")


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("penstock", ("click", "asyncio", *WEB, *TEXT, *TOOLS, *ENGINE)),
        ("penstock.cli", ("asyncio", *WEB, *TEXT, *TOOLS, *ENGINE)),  # penstock --help
        ("penstock.cli.serve", (*WEB, *TEXT, *TOOLS, *ENGINE)),  # penstock serve, up to the start of the engine
        ("penstock.cli.run, penstock.cli.chat, penstock.offline", ("asyncio", *WEB, *TEXT, *TOOLS, *ENGINE)),
        (  # an engine in its user's process
            "penstock.engine.local, penstock.startup.build, penstock.forward.native_backend",
            ("asyncio", "click", "zmq", "multiprocessing.shared_memory", *WEB, *TOOLS, "torch", "triton"),
        ),
        (
            "penstock.store.resolve, penstock.store.adapter_source",
            ("zipfile", "subprocess", "tempfile"),
        ),  # a model on the disk
        ("penstock.engine.worker", ("asyncio", "click", *WEB, *TEXT, *TOOLS, "torch", "triton")),
        ("penstock.http.app, penstock.http.server", ("llguidance", *TOOLS, *ENGINE)),  # the frontend of a server
        ("penstock.frontends.worker", ("llguidance", *TOOLS, *ENGINE)),
    ],
)
def test_nothing_heavy_is_imported_ahead_of_its_use(modules: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys, {modules}; print(*sys.modules.keys() & {set(unwanted)!r})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
