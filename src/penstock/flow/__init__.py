"""The structs that pass between the stages of a request, and the protocols that the stages implement.

    Request ──prompt, tokenize──► Submit ──engine──► Delta ──stream──► Chunk ──► Completion (or Embedding)
                                    │                  ▲
                          schedule: StepPlan ──► forward: StepResult

Only plain msgspec structs that can be sent to another process, and functions on them that frontend and engine share: no
torch, no HTTP.
"""

from penstock.flow.adapter import Adapter
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
from penstock.flow.protocols import Backend, ConstraintChecker, Engine, TextStream, Tokenizer, Vocabulary, WatchedEngine
from penstock.flow.request import Choice, Chunk, Completion, DraftedStep, Embedding, Message, Request, Trace
from penstock.flow.step import Admit, Extend, Row, RowResult, StepPlan, StepResult
from penstock.flow.tools import CallDelta, Tool, ToolCall, ToolUse

__all__ = [
    "Adapter",
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
    "DraftedStep",
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
    "Vocabulary",
    "WatchedEngine",
]
