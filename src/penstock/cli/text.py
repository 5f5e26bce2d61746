"""How numbers are shown to people."""

from __future__ import annotations

from penstock.settings import Settings


def context_note(context: int, models_own: int, settings: Settings) -> str | None:
    """What is to be said if memory has made the context shorter than the model's."""
    if settings.model.context is not None or context >= models_own:
        return None
    knob = "--kv-memory" if settings.cache.kv_memory else "--memory-fraction"
    return (
        f"context {context:,} tokens, as the KV cache holds; the model was made for {models_own:,} (more with {knob})"
    )


def size_text(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} GB"


def time_text(seconds: float) -> str:
    if seconds < 0.0995:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"


def count_text(count: float) -> str:
    """Three figures and a suffix: 70.6 G."""
    for suffix in ("", "k", "M", "G", "T"):
        if abs(count) < 999.5:
            return f"{count:.3g} {suffix}".rstrip()
        count /= 1000
    return f"{count:,.0f} P"
