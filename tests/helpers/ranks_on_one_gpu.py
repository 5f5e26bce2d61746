"""Ranks in processes of their own that share one GPU, which NCCL refuses: they exchange tensors through gloo, by way of
the host, and so compute without CUDA graphs. All else is as with a GPU each.

    share_one_gpu(monkeypatch, ranks=2)
    with LLM(folder, device="cuda", tensor_parallel=2, memory_fraction=0.2) as llm:
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = str(Path(__file__).parents[1])
ENTRIES = ("penstock.engine.worker", "penstock.engine.rank_worker")


class _WrappedPopen(subprocess.Popen[bytes]):
    """Engine processes and ranks start by way of this file."""

    def __init__(self, command: list[str], **options: Any) -> None:
        if command[1] == "-m" and command[2] in ENTRIES:
            command = [command[0], __file__, *command[2:]]
            options["env"] = (options.get("env") or os.environ) | {"PYTHONPATH": os.pathsep.join((TESTS, *sys.path))}
        super().__init__(command, **options)


def share_one_gpu(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    from penstock.startup import preflight

    monkeypatch.setattr(preflight.resources, "gpu_count", lambda: ranks)
    monkeypatch.setattr(subprocess, "Popen", _WrappedPopen)


def main() -> None:
    from penstock.engine import rank_group
    from penstock.forward import cuda_startup
    from penstock.forward.backend import BackendConfig
    from penstock.forward.cuda_graphs import CudaGraphs
    from penstock.forward.cuda_ranks import RankPlace
    from penstock.kernels.process_ranks import ProcessRanks
    from penstock.startup import build

    def join(config: BackendConfig) -> RankPlace:
        return RankPlace(ProcessRanks(*config.shard, config.meeting), config.spec.vocab_size)

    subprocess.Popen = _WrappedPopen  # type: ignore[misc, assignment]
    patched: Any = {
        (rank_group, "only_gpus"): lambda _: {},
        (build, "check_gpus"): lambda *_: None,
        (cuda_startup, "join"): join,
        (cuda_startup, "capture_graphs"): lambda *_: None,
        (CudaGraphs, "capture_largest"): lambda *_: None,
    }
    for (where, name), instead in patched.items():
        setattr(where, name, instead)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
