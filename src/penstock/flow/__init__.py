"""What moves between the stages of a request, and the protocols the stages meet through.

    Request ──prompt, tokenize──► Submit ──engine──► Delta ──stream──► Chunk ──► Completion (or Embedding)
                                    │                  ▲
                          schedule: StepPlan ──► forward: StepResult

Plain msgspec structs: no torch, no HTTP, nothing that cannot cross a process border.
"""

from penstock.flow.messages import (
    Cancel,
    Delta,
    Failure,
    FinishReason,
    Frame,
    Pooling,
    Query,
    Ready,
    Reply,
    Start,
    Submit,
    Task,
    Timings,
    TokenLogprobs,
)
from penstock.flow.params import SamplingParams
from penstock.flow.protocols import Engine, Runner, TextStream, Tokenizer, WatchedEngine
from penstock.flow.request import Choice, Chunk, Completion, Embedding, Message, Request
from penstock.flow.step import Admit, Extend, Row, RowResult, StepPlan, StepResult

__all__ = [
    "Admit",
    "Cancel",
    "Choice",
    "Chunk",
    "Completion",
    "Delta",
    "Embedding",
    "Engine",
    "Extend",
    "Failure",
    "FinishReason",
    "Frame",
    "Message",
    "Pooling",
    "Query",
    "Ready",
    "Reply",
    "Request",
    "Row",
    "RowResult",
    "Runner",
    "SamplingParams",
    "Start",
    "StepPlan",
    "StepResult",
    "Submit",
    "Task",
    "TextStream",
    "Timings",
    "TokenLogprobs",
    "Tokenizer",
    "WatchedEngine",
]
