"""What training reads: generations of the target and its hidden states, made or found in the work folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from draft_training import generations
from draft_training.corpus import Corpus, States, compute_states
from draft_training.fit import Teacher
from draft_training.generations import Generation, Generator
from draft_training.native_states import NativeStates
from draft_training.options import Options
from draft_training.prompts import read_prompts
from draft_training.target import Target
from penstock import LLM
from penstock.kernels.cpu import library
from penstock.store.resolve import resolve
from penstock.system.resources import cores

TEMPERATURES = (0.8, 0.5, 0.3)  # of the sampled answers to a prompt, in turn
SEQUENCES = {"cpu": 32, "cuda": 256}  # that the engine generates at the same time


class Data(NamedTuple):
    target: Target
    training: Corpus
    held_out: Corpus
    vocabulary: Tensor  # [draft vocabulary] token ids, ascending
    teacher: Teacher


def prepare(options: Options, report: Callable[[str], None]) -> Data:
    device = torch.device(options.device)
    folder = options.work / options.key("texts", "target", "invented", "samples", "max_tokens", "max_prompt", "seed")
    folder.mkdir(parents=True, exist_ok=True)
    sequences = dict(zip(("training", "held_out"), _generate(options, folder, report), strict=True))
    files = resolve(options.target)
    layers, vocab = files.spec.num_layers, files.spec.vocab_size
    context = max(len(one.tokens) for made in sequences.values() for one in made)
    taps = (2, layers // 2, layers - 3) if "eagle3" in options.kinds else ()
    target = Target(files, taps=taps, context=context, device=device, dtype=getattr(torch, options.dtype))
    source: States = target
    if native := device.type == "cpu" and library.load() is not None:
        source = NativeStates(files, taps=taps, context=context, threads=options.threads or cores())
    shape, suffix = (1 + len(taps), files.spec.hidden_size), "native" if native else options.dtype
    states = {
        name: compute_states(source, shape, made, folder / f"{name}-{suffix}-{len(taps)}.states", report)
        for name, made in sequences.items()
    }
    training = Corpus(sequences["training"], states["training"], options.window)
    held_out = Corpus(sequences["held_out"], states["held_out"], context)
    counts, seen = training.counts(vocab), held_out.counts(vocab)
    counts[list(files.spec.end_tokens)] = counts.max() + 1
    chosen = counts.argsort(descending=True, stable=True)[: options.draft_vocabulary].sort().values
    report(
        f"{len(training)} sequences of {training.num_tokens} tokens, {len(held_out)} held out; "
        f"{len(chosen)} drafted tokens cover {float(seen[chosen].sum() / seen.sum()):.1%} of those held out"
    )
    vocabulary = chosen.to(device)
    head = target.head[vocabulary].contiguous()
    teacher = Teacher(target.embedding, head, vocabulary, counts, options.feature_weight)
    return Data(target, training, held_out, vocabulary, teacher)


def _generate(
    options: Options, folder: Path, report: Callable[[str], None]
) -> tuple[list[Generation], list[Generation]]:
    """For training, and held out: greedy answers to prompts that training has not seen."""
    paths = folder / "training.jsonl", folder / "held_out.jsonl"
    if all(path.exists() for path in paths):
        return generations.load(paths[0]), generations.load(paths[1])
    training, held_out = read_prompts(options.texts)
    report(f"{len(training)} prompts for training, {len(held_out)} held out")
    device = torch.device(options.device).type
    with LLM(options.target, threads=options.threads, max_sequences=SEQUENCES[device], isolate=device == "cuda") as llm:
        generator = Generator(llm, max_tokens=options.max_tokens, seed=options.seed, report=report)
        longest = llm.pipeline.context - options.max_tokens
        measured = generator.answers("held-out answers", held_out, 0.0, longest)
        made = generator.answers("greedy answers", training, 0.0, options.max_prompt)
        invented = generator.invent_prompts(options.invented)
        made += generator.answers("greedy answers to invented prompts", invented, 0.0, options.max_prompt)
        for number in range(options.samples):
            temperature = TEMPERATURES[number % len(TEMPERATURES)]
            made += generator.answers(f"sampled answers {number}", training, temperature, options.max_prompt, number)
    if not made or not measured:
        raise SystemExit("the texts have too few prompts: training and evaluation need at least one each")
    for path, sequences in zip(paths, (made, measured), strict=True):
        generations.save(path, sequences)
    return made, measured
