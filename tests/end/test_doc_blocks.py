"""The command blocks of README and docs/, against a server of the default model."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.doc_blocks import Block, command_blocks, shell_commands
from helpers.server_process import PATIENCE_S, Server, environment
from penstock.store.catalogue import DEFAULT

BLOCKS = command_blocks()
RUN = [block for block in BLOCKS if block.mark and block.mark.startswith("run")]
ADDRESS = re.compile(r"(?:http://)?(?:127\.0\.0\.1|localhost):8000")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(DEFAULT, "--kv-memory", "200MB", threads=str(os.cpu_count())) as server:
        yield server


def test_every_command_block_is_run_or_says_why_not() -> None:
    known = re.compile(r"run|run: an error|not run: .{8,}")
    assert [block.name for block in BLOCKS if not known.fullmatch(block.mark or "")] == []
    assert len(RUN) > 15


@pytest.mark.weights
@pytest.mark.parametrize("block", RUN, ids=lambda block: block.name)
def test_the_block_works(block: Block, server: Server, tmp_path: Path) -> None:
    text = ADDRESS.sub(server.url, shell_commands(block))
    if block.language == "python":
        names: dict[str, Any] = {}
        exec(compile(text, block.name, "exec"), names)
        if hasattr(names.get("client"), "close"):
            names["client"].close()
        return
    if "curl" in text and shutil.which("curl") is None:
        pytest.skip("needs curl")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE_S, env=environment(PATH=path)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert ('"error":{' in done.stdout) == (block.mark == "run: an error"), done.stdout
