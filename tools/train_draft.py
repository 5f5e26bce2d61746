"""Distils draft heads and a small draft model for speculative decoding, and measures their acceptance.

    python tools/train_draft.py questions.jsonl poems.txt --output drafts

Stages; the work folder keeps what each has made, so that a run that was broken off continues there:

1. generate  the target answers the prompts of the text files, greedily and sampled, and prompts that it makes up; every
             sixth prompt of a file is held out
2. states    the target's hidden states along these answers, in floating point
3. train     an EAGLE-1 head (eagle), an EAGLE-3 head (eagle3), Medusa heads (medusa), a small model (model): --kinds
4. measure   acceptance by position on the answers to the held-out prompts
5. save      OUTPUT/KIND with config.json, model.safetensors and training.json

Text files are .jsonl (also .jsonl.gz) with "turns", "messages", "prompt" or "text" on each line, or plain text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from draft_training.data import prepare
from draft_training.options import parse
from draft_training.trainer import Trainer


def main(given: Sequence[str] | None = None) -> None:
    options = parse(__doc__ or "", given)
    began = time.monotonic()

    def report(line: str) -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {line}", flush=True)

    if options.threads:
        torch.set_num_threads(options.threads)
    trainer = Trainer(options, prepare(options, report), report)
    for kind in options.kinds:
        trainer.train(kind, options.output / kind)


if __name__ == "__main__":
    main()
