"""What 100 safety rules add to the way of a token through the frontend, in nanoseconds of CPU time.

    python bench/safety_path.py [--rules 100] [--rounds 60]

The words of a page of the documentation are the tokens of an answer. Rounds go there and back (without, with, with,
without rules) in one process, so that the figure holds on a busy machine too; printed are the medians over the rounds,
with the 95% interval of `safety.py`. Compare it with the cost of a token in `frontend.py` on the same machine: 10 µs on
a quiet one. `new text` is what rules add that have seen the other pages, but not this one. `long way` is the share of
its tokens that need a chunk of their own.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tomllib
from pathlib import Path

import msgspec

import safety
from penstock.flow import Delta, SamplingParams, Submit
from penstock.gateway.safety.choice_filter import Context, RuleFilter
from penstock.gateway.safety.rules import Rules, Ruleset
from penstock.settings.safety import SafetyEntry
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream

TEXT = Path(__file__).parent.parent / "docs" / "SERVER.md"


class Decoder:
    """Of tokens that are whole words."""

    holds_text = False

    def __init__(self, words: list[str]) -> None:
        self.fixed_texts = dict(enumerate(words))

    def push(self, token: int) -> str:
        return self.fixed_texts[token]

    def flush(self) -> str:
        return ""


def answer(tokens: list[int], decoder: Decoder, rules: Ruleset | None) -> tuple[float, float]:
    """CPU time for each token of an answer, in nanoseconds; and the share of the tokens that take the long way."""
    params = SamplingParams()
    active = ActiveRequest("r", [Submit("r/0", [1], params, 0, 0)], lambda index: ChoiceStream(index, params, decoder))
    if rules is not None:
        context = Context(token_bytes=lambda token: decoder.fixed_texts[token].encode())
        active.filter_output(lambda: RuleFilter(rules.matcher, rules.size, lambda *_: None, context))
    way, num_long = active.short_way(0), 0
    started = time.thread_time()
    for token in tokens:
        if way.push_token(token) is None:
            active.push(Delta(id="r/0", tokens=[token]))
            way, num_long = active.short_way(0), num_long + 1
    return (time.thread_time() - started) / len(tokens) * 1e9, num_long / len(tokens)


def words_of(page: Path) -> list[str]:
    return [f"{word} " for word in page.read_text().split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    entries = tuple(msgspec.convert(tomllib.loads(safety.rules(options.rules))["safety"], list[SafetyEntry]))
    rules = Rules(entries).of("", "output")
    said = words_of(TEXT)
    other = [word for page in sorted(TEXT.parent.glob("*.md")) if page != TEXT for word in words_of(page)]
    words = sorted({*said, *other})
    decoder, numbers = Decoder(words), {word: number for number, word in enumerate(words)}
    once, before = [numbers[word] for word in said], [numbers[word] for word in other]
    tokens = once * 3
    answer(tokens, decoder, rules)
    without, added, control, new, long = [], [], [], [], []
    for _ in range(options.rounds):
        first, second, third, last = (answer(tokens, decoder, one)[0] for one in (None, rules, rules, None))
        without.append(first)
        added.append((second + third - first - last) / 2)
        control.append(last - first)
        fresh = Rules(entries).of("", "output")
        answer(before, decoder, fresh)
        spent, share = answer(once, decoder, fresh)
        new.append(spent - answer(once, decoder, None)[0])
        long.append(100 * share)
    measured = (("without rules", without), ("added by rules", added), ("control", control), ("new text", new))
    for name, values in measured:
        low, high = safety.interval(values)
        print(f"{name:14} {statistics.median(values):6.0f} ns a token, 95% {low:.0f} to {high:.0f}")
    print(f"{'long way':14} {statistics.median(long):6.1f} % of the tokens of new text")


if __name__ == "__main__":
    main()
