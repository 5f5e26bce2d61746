"""Looks up the model and hardware that a question names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping

from penstock.capacity import device, shape
from penstock.capacity.question import DeviceNumbers, ModelNumbers
from penstock.errors import InvalidRequest, ModelNotFound

THIS = "this"


def find_shape(given: str | ModelNumbers, here: Mapping[str, shape.Shape]) -> shape.Shape:
    """`here`: models on this machine; they take precedence over the presets."""
    if isinstance(given, ModelNumbers):
        return given.shape()
    known = {**shape.PRESETS, **here}
    if given not in known:
        raise ModelNotFound(_unknown("model", given, [*here, *shape.PRESETS]), param="model")
    return known[given]


def find_device(given: str | DeviceNumbers, this: Callable[[], device.Device]) -> device.Device:
    """`this` measures the machine it runs on."""
    if isinstance(given, DeviceNumbers):
        return given.device()
    if given == THIS:
        return this()
    if given not in device.PRESETS:
        raise InvalidRequest(_unknown("hardware", given, [THIS, *device.PRESETS]), param="hardware")
    return device.PRESETS[given]


def _unknown(what: str, given: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(given[:64].lower(), known, n=1, cutoff=0.5)
    guess = f" (did you mean {close[0]}?)" if close else ""
    return f"{what}: {given[:64]!r} is unknown{guess}; known: {', '.join(known)}; or give its numbers"
