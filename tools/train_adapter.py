"""Trains a LoRA adapter for SmolLM2 in a few minutes on two cores: it answers like a ship's captain.

    python tools/train_adapter.py build/captain

The data is made here: the model answers some dozens of questions itself, each answer is cut to its first sentence and
dressed up ("Ahoy! … So says the captain."), and the adapter learns to answer so. The result is a folder as PEFT writes
it, some 5 MB. docs/ADAPTERS.md serves it beside the model.
"""

from __future__ import annotations

import argparse
import re
import time
import warnings
from pathlib import Path
from typing import Any

MODEL = "smollm2"
RATE = 1e-3
OPENING, CLOSING = "Ahoy!", "So says the captain."
THINGS = """
rain|a volcano|the moon|photosynthesis|a bicycle|gravity|coffee|a library|the sun|a glacier|bread|music|a bridge|sleep
an island|honey|a compass|electricity|a lighthouse|paper|a river|chess|a telescope|salt|the wind|a castle|an orchestra
snow|a clock|tea|a desert|a camera|cotton|a forest|steel|a rainbow|democracy|a wheel|thunder|a whale|a harbour|cheese
a violin|algebra|a battery|silk|an earthquake|a pyramid|chocolate|a submarine
"""
QUESTIONS = [
    form.format(thing)
    for place, thing in enumerate(THINGS.replace("\n", "|").strip("|").split("|"))
    for form in (("What is {}?", "Why do people care about {}?", "Tell me something about {}.")[place % 3],)
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="Folder of the adapter.")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    started = time.monotonic()
    examples = make_examples()
    print(f"{time.monotonic() - started:5.0f} s  {len(examples)} examples, such as: {examples[0][2]}")
    train(examples, arguments.out, rank=arguments.rank, epochs=arguments.epochs, started=started)
    size = sum(path.stat().st_size for path in arguments.out.iterdir())
    print(f"{time.monotonic() - started:5.0f} s  {arguments.out}: {size / 1e6:.1f} MB")


def make_examples() -> list[tuple[list[int], list[int], str]]:
    """Tokens of a prompt and of its answer, and the answer as text."""
    from penstock import LLM, SamplingParams
    from penstock.flow import Request

    with LLM(MODEL) as llm:
        prompts = [[{"role": "user", "content": question}] for question in QUESTIONS]
        answers = llm.chat(prompts, SamplingParams(temperature=0, max_tokens=60), progress=False)
        examples = []
        for messages, answer in zip(prompts, answers, strict=True):
            sentence = re.split(r"(?<=[.!?])\s", answer.text.strip())[0]
            text = f"{OPENING} {sentence} {CLOSING}"
            prompt = llm.pipeline.tokenize(Request(id="", params=SamplingParams(), messages=messages))
            tokenizer = llm.pipeline.tokenizer
            assert tokenizer is not None
            examples.append((prompt, tokenizer.encode(text + "<|im_end|>", add_special=False), text))
    return examples


def base_model() -> Any:
    """SmolLM2's dequantized weights, in transformers."""
    import torch
    import transformers

    from penstock.store.resolve import resolve

    (weights,) = resolve(MODEL).weights
    return transformers.AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32
    )


def train(
    examples: list[tuple[list[int], list[int], str]], out: Path, *, rank: int, epochs: int, started: float
) -> None:
    import peft
    import torch

    warnings.filterwarnings("ignore", category=UserWarning)
    torch.manual_seed(0)
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(base_model(), config)
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
    total, step = epochs * len(examples), 0
    losses: list[float] = []
    for _ in range(epochs):
        for place in torch.randperm(len(examples)).tolist():
            prompt, answer, _ = examples[place]
            ids = torch.tensor([prompt + answer])
            labels = torch.tensor([[-100] * len(prompt) + answer])
            loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            for group in optimizer.param_groups:
                group["lr"] = RATE * (1 - step / total)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            step += 1
            if step % 10 == 0:
                recent = sum(losses[-10:]) / len(losses[-10:])
                print(f"{time.monotonic() - started:5.0f} s  step {step}/{total}: loss {recent:.3f}", flush=True)
    model.half()
    model.peft_config["default"].base_model_name_or_path = MODEL
    model.save_pretrained(out)


if __name__ == "__main__":
    main()
