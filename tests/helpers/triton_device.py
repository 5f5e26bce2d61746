"""Device and dtypes of the Triton kernel tests: CUDA, or the CPU in Triton's interpreter (TRITON_INTERPRET=1), which
does not round to bfloat16 as a GPU does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import triton.language as tl
from triton import knobs

from penstock.kernels.cuda import draw, launch

INTERPRETED: bool = knobs.runtime.interpret
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
MARKS = [pytest.mark.filterwarnings("ignore::RuntimeWarning")] if INTERPRETED else [pytest.mark.gpu]

if INTERPRETED:  # the interpreter has neither libdevice nor dependent launch
    draw.libdevice = SimpleNamespace(log=lambda x: tl.log(x))
    launch.overlaps = lambda: False
