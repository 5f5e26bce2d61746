"""A CPU engine where torch is not installed: it loads, generates and reports what the torch backend and transformers
compute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from helpers import cpu_path, tiny_models
from helpers.native_paged_model import needs_library

TESTS = Path(__file__).parents[1]


@needs_library
def test_the_cpu_path_without_torch(tmp_path: Path) -> None:
    for family in tiny_models.FAMILIES:
        folder = tiny_models.make(family, tmp_path / family)
        with torch.inference_mode():
            logits = tiny_models.oracle(folder)(torch.tensor([cpu_path.TEXT])).logits[0]
        np.save(folder / "logits.npy", logits.numpy())
    expected = {}
    for family in ("llama", "gemma3"):  # one cache group, and two
        with cpu_path.open_llm(tmp_path / family, dtype="float32", threads=None) as llm:
            assert llm.facts["kernels"] == "torch"
            expected[family] = cpu_path.answers(llm)
    (tmp_path / "answers.json").write_text(json.dumps(expected))
    program = [sys.executable, "-W", "error", str(TESTS / "helpers/without_torch.py"), str(tmp_path)]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(program, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
