"""What a draw reports beside the token, around the draw itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from penstock.kernels.upload import upload
from penstock.sample.constraints import StepConstraints
from penstock.sample.inspect import Distribution, inspect
from penstock.sample.masks import Floats
from penstock.sample.reference.draws import Draws
from penstock.sample.reference.inspect import distribution
from penstock.sample.reference.logprobs import measure
from penstock.sample.request_table import RequestTable
from penstock.sample.slot_request import SlotRequest


def report(
    requests: RequestTable,
    tokens: Tensor,
    logits: Tensor,
    slots: Sequence[int],
    positions: Sequence[int],
    constraints: StepConstraints | None,
    draw: Callable[[], Tensor],
) -> Draws:
    """Calls `draw`, which samples from `logits` [rows, vocab] and overwrites them, and adds the reports. `tokens`
    [slots, context] are the sequences. Inspections wait for the device: nobody but the sampling lab asks for them."""

    def read(row: int, request: SlotRequest) -> tuple[Floats, Distribution]:
        own = logits[row].cpu().clone()
        return own.numpy(), partial(distribution, own, tokens[request.slot].cpu(), request.masks)

    inspected = inspect(requests, slots, positions, constraints, read) if requests.inspects(slots) else {}
    rows = requests.logprob_rows(slots)
    if rows is None:
        return Draws(tokens=draw(), constraints=constraints, inspected=inspected)
    index = upload(rows.rows, logits.device)
    model_logits = logits.index_select(0, index)
    drawn = draw()
    measured = measure(model_logits, drawn[index], rows.counts)
    return Draws(tokens=drawn, logprobs=measured, logprob_rows=rows.rows, constraints=constraints, inspected=inspected)
