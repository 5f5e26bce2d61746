"""What prompt lookup could gain at most: the least time in which known answers can be produced by drafts that continue
an earlier occurrence of the last tokens, if always the right occurrence is picked and never a token too many drafted.

    python bench/lookup_bound.py --costs 1:30.1,2:31.1,4:35.5,8:55.4,16:101.1 [--model smollm2] [--questions FILE]
                                 [--prompts 10] [--tokens 128] [--only summarization,rag]

`--costs`: time of a step by the tokens it computes, in any unit; in between costs lie on lines. The bound is given for
matches of at least 1, 2 and 3 tokens, with free drafts and at these costs; and beside it what the engine's own proposer
and rules make of the same answers at these costs (bench/lookup_replay.py), and what chains and trees of drafts would
(bench/lookup_tree.py): with as many nodes as are likely to save the most, and with as many as turn out best.
"""

import argparse
from pathlib import Path

import numpy as np

from lookup_replay import replay
from lookup_tree import MOST_NODES, gains
from penstock import LLM, SamplingParams
from speculation import categories

MOST_DRAFTS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--questions", type=Path, help="Spec-Bench's questions")
    parser.add_argument("--prompts", type=int, default=10, help="of each category")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--only", default="", help="categories, comma-separated")
    options = parser.parse_args()
    measured = {int(size): float(cost) for size, cost in (one.split(":") for one in options.costs.split(","))}
    sizes = range(1, MOST_DRAFTS + 2)
    costs = [float(np.interp(size, list(measured), list(measured.values()))) / measured[1] for size in sizes]
    with LLM(options.model, context=4096, kv_memory="1GB") as llm:
        for category, prompts in categories(options):
            chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
            found = llm.chat(chats, SamplingParams(temperature=0.0, max_tokens=options.tokens))
            answers = [(one.prompt_tokens, one.choices[0].tokens) for one in found]
            tokens = sum(len(answer) - 1 for _, answer in answers)
            bounds = [
                f"{tokens / sum(least_time(*answer, least, table) for answer in answers):.2f}"
                for least in (1, 2, 3)
                for table in ([1.0] * len(costs), costs)
            ]
            pairs = ", ".join(f"{free} and {priced}" for free, priced in zip(bounds[::2], bounds[1::2], strict=True))
            real = replay(answers, measured, llm.pipeline.spec.end_tokens)
            by_branches = {branches: gains(answers, costs, branches) for branches in (1, MOST_NODES)}
            ratio, right = tokens * measured[1] / real.seconds, real.accepted / max(1, real.drafted)
            print(
                f"{category:16} {tokens:6} tokens, free and priced, by least match: {pairs}; "
                f"replayed {ratio:.2f}, {right:.0%} of the drafts right; "
                f"chains {by_branches[1].ruled:.2f} and {by_branches[1].known:.2f}, "
                f"trees {by_branches[MOST_NODES].ruled:.2f} and {by_branches[MOST_NODES].known:.2f}",
                flush=True,
            )


def least_time(prompt: list[int], answer: list[int], least: int, costs: list[float]) -> float:
    """In steps of one token, after the first; `costs` by tokens of a step, from 1 on. A match has `least` tokens."""
    tokens = prompt + answer
    places: dict[tuple[int, ...], list[int]] = {}  # behind earlier occurrences
    for end in range(least, len(prompt) + 1):
        places.setdefault(tuple(tokens[end - least : end]), []).append(end)
    times = [float("inf")] * (len(tokens) + 1)
    times[len(prompt) + 1] = 0.0
    for position in range(len(prompt) + 1, len(tokens)):
        last = tuple(tokens[position - least : position])
        longest = max((common(tokens, place, position) for place in places.get(last, ())), default=0)
        for drafts in range(longest + 1):
            reached = position + drafts + 1
            times[reached] = min(times[reached], times[position] + costs[drafts])
        places.setdefault(last, []).append(position)
    return times[-1]


def common(tokens: list[int], place: int, position: int) -> int:
    """How many tokens at both are the same; the last token of all is never drafted."""
    most = min(MOST_DRAFTS, len(tokens) - 1 - position)
    return next((n for n in range(most) if tokens[place + n] != tokens[position + n]), most)


if __name__ == "__main__":
    main()
