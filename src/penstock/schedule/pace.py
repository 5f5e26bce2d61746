"""How fast the engine is, as measured from its steps: estimates for the deadline policy."""

from __future__ import annotations

SMOOTHING = 0.1  # weight of the newest measurement


class Pace:
    """Moving averages. Estimates are 0 until something has been measured."""

    def __init__(self) -> None:
        self._token_s = 0.0  # of a step with prompt tokens, per token
        self._step_s = 0.0
        self._output_tokens = 0.0  # of a sequence
        self._settled = 0.0  # the last step

    def add_step(self, planned: float, settled: float, counts: list[int]) -> None:
        """`counts` are the tokens of its rows."""
        seconds = settled - max(planned, self._settled)  # steps overlap
        self._settled = settled
        self._step_s = _average(self._step_s, seconds)
        if max(counts) > 1:
            self._token_s = _average(self._token_s, seconds / sum(counts))

    def add_output(self, tokens: int) -> None:
        """A sequence has ended with this many output tokens."""
        self._output_tokens = _average(self._output_tokens, tokens)

    def prefill_s(self, tokens: int) -> float:
        """Estimated time to compute a prompt."""
        return tokens * self._token_s

    def output_s(self, most: int) -> float:
        """Estimated time to generate an output of at most this many tokens."""
        return min(most, self._output_tokens) * self._step_s


def _average(before: float, value: float) -> float:
    return value if not before else before + SMOOTHING * (value - before)
