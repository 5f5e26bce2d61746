"""Where there is no GPU: some tests of the GPU's kernels in Triton's interpreter, which has to be chosen before it is
imported, so in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

HERE = Path(__file__).parent
CHOSEN = {
    "test_cuda.py": "embed or norms or decode_inputs or rotate or (gated and 33) or 6-2-24-4-24-1.5",
    "test_rank_parts.py": "tokens or sums",
    "test_cuda_accept.py": "test",
    "test_cuda_low_rank.py": "ranks0-8 or tables or heads",
    "test_invariant_attention.py": "teams or chunks_of or (right and shape8-24-1.5)",
    "test_invariant_gemm.py": "right and (5-100-77 or 33-96-128 or described)",
    "test_cuda_kv.py": "transform or saturate or (stored and 4-2-16) or (test_attention and 4-2-32-8 and int8-int4)",
    "test_cuda_coded.py": "codes or eight or order or (surrounds and 17)",
    "test_cuda_sample.py": "greedy_and_plain or fill_up or log_p or (cpu_draws and 900) or small or rules_are or mask",
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="all of them run on the device itself")
@pytest.mark.timeout(1800)  # of a whole file, whose tests have their own limits in the other process
@pytest.mark.parametrize("name", CHOSEN)
def test_interpreted(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / name), "-k", CHOSEN[name]],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:]
    assert " skipped" not in run.stdout
