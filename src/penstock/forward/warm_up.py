"""Warm-up steps: real steps over block 0, which belongs to no sequence."""

from __future__ import annotations

from penstock.flow import Admit, Backend, Row, SamplingParams, StepPlan


def run_warm_up_steps(
    backend: Backend,
    tokens: int,
    *,
    max_sequences: int,
    block_size: int,
    num_groups: int,
    lengths_between: tuple[int, ...] = (50, 20),
) -> None:
    """A prompt of `tokens` and shorter ones, with every way to sample; prompts of `lengths_between` that no decode
    graph covers; and `max_sequences` decodes beside a prompt. No step reads the tokens of another: while kernels are
    precompiled (`kernels.cuda.precompile`), nothing is computed.
    """
    greedy, filtered = SamplingParams(temperature=0.0), SamplingParams(top_k=50, top_p=0.9)
    full = SamplingParams(presence_penalty=1.0, banned_tokens=(0,))

    def admit(slot: int, length: int, params: SamplingParams) -> Admit:
        blocks = [[0] * -(-(length + 1) // block_size) for _ in range(num_groups)]
        return Admit(slot, [0] * (length + 1), length, params, 0, 0, (), blocks)

    def step(admits: list[Admit], rows: list[Row]) -> None:
        backend.launch(StepPlan(0, admits, [], rows))
        backend.collect()

    lengths = [(tokens, full), (min(tokens, 100), greedy), (min(tokens, 2), filtered)]
    lengths += [(length, greedy) for length in lengths_between if max_sequences < length < tokens]
    for length, params in lengths:
        for row in (Row(0, 0, length, True), Row(0, length, 1, True)):
            step([admit(0, length, params)], [row])
    others = range(1, min(max_sequences, tokens - 1))
    length = tokens - len(others)
    step(
        [*(admit(slot, 1, full if slot % 2 else greedy) for slot in others), admit(0, length, greedy)],
        [*(Row(slot, 1, 1, True) for slot in others), Row(0, 0, length, True)],
    )
