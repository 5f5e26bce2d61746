"""`test_cuda_rank_steps` in Triton's interpreter, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")


@pytest.mark.timeout(1800)
def test_interpreted() -> None:
    tests = Path(__file__).with_name("test_cuda_rank_steps.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:]
    assert " skipped" not in run.stdout
