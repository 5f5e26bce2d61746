"""transformers as a peer of bench/cpu.py: see cpu_child.py. It dequantizes the GGUF file to float32. Streams are a
static batch, all with one prompt, whose keys and values are computed once and copied: only decode is timed."""

from pathlib import Path

import torch
import transformers

import cpu_child
from cpu_child import timed


class Transformers:
    def __init__(self, model: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            model.parent, gguf_file=model.name, dtype=torch.float32
        ).eval()

    @torch.inference_mode()
    def first_token(self) -> float:
        return timed(lambda: self._model(self._prompt(16), logits_to_keep=1))

    @torch.inference_mode()
    def prefill(self, tokens: int) -> float:
        ids = self._prompt(tokens)
        self._model(ids[:, :32], logits_to_keep=1)
        return tokens / timed(lambda: self._model(ids, logits_to_keep=1))

    @torch.inference_mode()
    def decode(self, prompt: int, streams: int, output: int) -> float:
        found = self._model(self._prompt(prompt), logits_to_keep=1, use_cache=True)
        cache, token = found.past_key_values, found.logits[:, -1:].argmax(-1)
        if streams > 1:
            cache.batch_repeat_interleave(streams)
            token = token.repeat(streams, 1)

        def steps(count: int) -> None:
            nonlocal token
            for _ in range(count):
                token = self._model(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)

        steps(1)
        return streams * output / timed(lambda: steps(output))

    def _prompt(self, tokens: int) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(0)
        return torch.randint(300, self._model.config.vocab_size - 300, (1, tokens), generator=drawn)


if __name__ == "__main__":
    cpu_child.serve(Transformers)
