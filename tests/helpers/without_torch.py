"""The whole CPU path in a process that cannot import torch: `python without_torch.py FOLDER`.

FOLDER has tiny models and what torch and transformers compute with them (tests/end/test_without_torch.py)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ABSENT = ("torch", "triton", "transformers", "safetensors", "gguf")


class Absent:
    """A finder that has none of these packages."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}")


sys.meta_path.insert(0, Absent())  # type: ignore[arg-type]

import numpy as np  # noqa: E402
import pytest  # noqa: E402

from helpers import cpu_path  # noqa: E402
from helpers.native_paged_model import NativePagedModel  # noqa: E402
from penstock.errors import InvalidSetting  # noqa: E402
from penstock.kernels.cpu.program import Pool  # noqa: E402
from penstock.model import PackedForm, load, open_source  # noqa: E402
from penstock.store import hf_folder  # noqa: E402

PORTIONS = (7, 1, 1, 64)


def main(folder: Path) -> None:
    expected = json.loads((folder / "answers.json").read_text())
    for name, theirs in expected.items():
        with cpu_path.open_llm(folder / name) as llm:
            assert llm.facts["kernels"].startswith("native")
            ours = json.loads(json.dumps(cpu_path.answers(llm)))
        for part, values in theirs.items():
            assert cpu_path.difference(ours[part], values) < 1e-4, (name, part, ours[part], values)
    pool = Pool(2)
    for path in sorted(folder.glob("*/logits.npy")):
        check_logits(path, pool)
    check_rejection(folder / next(iter(expected)))
    assert not any(module.split(".")[0] in ABSENT for module in sys.modules)


def check_logits(path: Path, pool: Pool) -> None:
    """Float32 is transformers'; every form gives the same bits, however the text is cut."""
    files = hf_folder.read(path.parent, "tiny")
    for quantize in (None, "int8", "int4"):
        source = open_source(files.weights, files.format)
        model = load(files.spec, source, PackedForm(quantize), context=256, threads=2)  # type: ignore[arg-type]
        found = []
        for portions in ((), PORTIONS):
            paged = NativePagedModel(model, pool)
            index = paged.add(cpu_path.TEXT)
            for count in (*portions, len(cpu_path.TEXT) - sum(portions)):
                paged.step({index: count})
            found.append(paged.logits(index))
        assert np.array_equal(*found), (path, quantize)
        if quantize is None:
            assert abs(found[0] - np.load(path)).max() < 1e-4, path


def check_rejection(model: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"dtype float32 needs torch, .*pip install 'penstock\[torch\]'") as caught:
        cpu_path.open_llm(model, dtype="float32")
    assert caught.value.param == "dtype"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
