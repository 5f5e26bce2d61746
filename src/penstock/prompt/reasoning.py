"""How models reason, by their chat templates: the markers around the reasoning, and the variable that switches it."""

from __future__ import annotations

from penstock.flow import ReasoningMarkers

REASONING_MARKERS = (ReasoningMarkers("<think>", "</think>"), ReasoningMarkers("[THINK]", "[/THINK]"))
SWITCHES = ("enable_thinking", "thinking")  # template variables


def detect_markers(template_source: str) -> ReasoningMarkers | None:
    return next((markers for markers in REASONING_MARKERS if markers.close in template_source), None)
