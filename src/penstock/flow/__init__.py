"""What moves between the stages of a request, and the protocols the stages meet through.

    Request ──prompt, tokenize──► Submit ──engine──► Delta ──stream──► Chunk ──► Completion (or Embedding)
                                    │                  ▲
                          schedule: StepPlan ──► forward: StepResult

Plain msgspec structs: no torch, no HTTP, nothing that cannot cross a process border.
"""

from penstock.flow.constraint import Constraint
from penstock.flow.messages import (
    Cancel,
    Delta,
    Failure,
    FinishReason,
    Frame,
    Inspection,
    Pooling,
    Query,
    Ready,
    Reply,
    Stage,
    Start,
    Submit,
    Task,
    Timings,
    TokenLogprobs,
)
from penstock.flow.output_format import OutputFormat, ReasoningMarkers
from penstock.flow.params import SamplingParams
from penstock.flow.protocols import Backend, ConstraintChecker, Engine, TextStream, Tokenizer, WatchedEngine
from penstock.flow.request import Choice, Chunk, Completion, Embedding, Message, Request, Trace
from penstock.flow.step import Admit, Extend, Row, RowResult, StepPlan, StepResult
from penstock.flow.tools import CallDelta, Tool, ToolCall, ToolUse

__all__ = [
    "Admit",
    "Backend",
    "CallDelta",
    "Cancel",
    "Choice",
    "Chunk",
    "Completion",
    "Constraint",
    "ConstraintChecker",
    "Delta",
    "Embedding",
    "Engine",
    "Extend",
    "Failure",
    "FinishReason",
    "Frame",
    "Inspection",
    "Message",
    "OutputFormat",
    "Pooling",
    "Query",
    "Ready",
    "ReasoningMarkers",
    "Reply",
    "Request",
    "Row",
    "RowResult",
    "SamplingParams",
    "Stage",
    "Start",
    "StepPlan",
    "StepResult",
    "Submit",
    "Task",
    "TextStream",
    "Timings",
    "TokenLogprobs",
    "Tokenizer",
    "Tool",
    "ToolCall",
    "ToolUse",
    "Trace",
    "WatchedEngine",
]
