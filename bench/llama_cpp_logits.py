"""Logits of llama.cpp for given tokens, for bench/divergence.py; run with a Python that has llama-cpp-python.

    PYTHON bench/llama_cpp_logits.py MODEL.gguf THREADS SEQUENCES.json LOGITS.npy

LOGITS.npy gets the logits of all sequences, one after the other.
"""

import json
import sys
from pathlib import Path

sys.path.pop(0)  # bench/llama_cpp.py is another module of that name

import numpy as np

from llama_cpp import Llama

CONTEXT = 1024


def main() -> None:
    model, threads, sequences, logits = sys.argv[1:]
    llama = Llama(
        model,
        n_ctx=CONTEXT,
        n_batch=512,
        n_threads=int(threads),
        n_threads_batch=int(threads),
        logits_all=True,
        verbose=False,
    )
    found = []
    for tokens in json.loads(Path(sequences).read_text()):
        assert len(tokens) <= CONTEXT, "an answer is longer than the context"
        llama.reset()
        llama.eval(tokens)
        found.append(np.array(llama.scores[: len(tokens)], np.float32))
    np.save(logits, np.concatenate(found))


if __name__ == "__main__":
    main()
