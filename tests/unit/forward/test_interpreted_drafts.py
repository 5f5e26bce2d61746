"""Where there is no GPU: `test_cuda_drafts` in Triton's interpreter, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")


@pytest.mark.skipif(torch.cuda.is_available(), reason="they run on the device itself")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["recorded_drafts and 11", "eagle3"])
def test_interpreted(name: str) -> None:
    tests = Path(__file__).with_name("test_cuda_drafts.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests), "-k", name],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:]
    assert " skipped" not in run.stdout
