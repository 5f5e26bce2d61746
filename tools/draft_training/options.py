"""The command line of `tools/train_draft.py`."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

KINDS = ("eagle", "eagle3", "medusa", "model")
MOST_STEPS = 4


@dataclass(frozen=True)
class Options:
    texts: tuple[Path, ...]
    target: str
    kinds: tuple[str, ...]
    output: Path
    work: Path
    invented: int
    samples: int
    max_tokens: int
    max_prompt: int
    window: int
    draft_vocabulary: int
    epochs: int
    steps: int
    depth: int
    layers: int
    learning_rate: float
    batch_tokens: int
    feature_weight: float
    device: str
    dtype: str
    threads: int | None
    seed: int

    def key(self, *names: str) -> str:
        """A name for what these options determine."""
        values = {name: value for name, value in asdict(self).items() if name in names}
        if "texts" in names:
            values["texts"] = [[path.name, path.stat().st_size if path.exists() else 0] for path in self.texts]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def parse(description: str, given: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("texts", nargs="+", type=Path, help="files with prompts")
    add("--target", default="smollm2", help="the model to draft for, named as for `penstock run` [smollm2]")
    add("--kinds", default="eagle,medusa,model", help=f"what to train, of {', '.join(KINDS)} [eagle,medusa,model]")
    add("--output", type=Path, default=Path("drafts"), help="folder of the results [drafts]")
    add("--work", type=Path, help="folder of intermediate results, about 5 kB per token [OUTPUT/work]")
    add("--invented", type=int, default=600, help="prompts that the target makes up [600]")
    add("--samples", type=int, default=1, help="sampled answers to each prompt of the files, beside a greedy one [1]")
    add("--max-tokens", type=int, default=192, help="of an answer [192]")
    add("--max-prompt", type=int, default=640, help="tokens; training leaves out longer prompts [640]")
    add("--window", type=int, default=384, help="tokens of a sequence that are read in training [384]")
    add("--draft-vocabulary", type=int, default=16384, help="most frequent tokens that are drafted at all [16384]")
    add("--epochs", type=int, default=4, help="passes over the training tokens [4]")
    add("--steps", type=int, default=3, help=f"draft steps that an EAGLE head is trained for, 1 to {MOST_STEPS} [3]")
    add("--depth", type=int, default=4, help="draft steps that are measured, and Medusa heads [4]")
    add("--layers", type=int, default=2, help="of the draft model [2]")
    add("--learning-rate", type=float, default=0.02, help="of matrices, at its highest [0.02]")
    add("--batch-tokens", type=int, default=3072, help="of an update [3072]")
    add("--feature-weight", type=float, default=0.05, help="of EAGLE-1's distance to the hidden states [0.05]")
    add("--device", default="cpu", help="cpu or cuda, for hidden states and training [cpu]")
    add(
        "--dtype",
        default="bfloat16",
        choices=("bfloat16", "float32"),
        help="of the hidden states and of products [bfloat16]",
    )
    add("--threads", type=int, help="CPU threads of generation and training [all]")
    add("--seed", type=int, default=0)
    values = vars(parser.parse_args(given))
    values["texts"], values["kinds"] = tuple(values["texts"]), tuple(values["kinds"].split(","))
    values["work"] = values["work"] or values["output"] / "work"
    if unknown := [kind for kind in values["kinds"] if kind not in KINDS]:
        parser.error(f"--kinds: unknown {', '.join(unknown)}; there are {', '.join(KINDS)}")
    for name in ("steps", "depth"):
        if not 1 <= values[name] <= MOST_STEPS:
            parser.error(f"--{name}: 1 to {MOST_STEPS}")
    return Options(**values)
