"""The CUDA backend with drafts, without a GPU: see `helpers.interpreted_backend`. In a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

TESTS = Path(__file__).parents[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device itself is tested")
@pytest.mark.timeout(1800)
def test_interpreted() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(TESTS / "interpreted")],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:]
    assert " skipped" not in run.stdout
