"""Capacity arithmetic: what a model needs and what a machine can give, before either is there. No torch, no engine.

question ──► planner ──► answer
              ├── memory       weights, KV per token, longest context, concurrent requests
              ├── speed        prefill and decode from arithmetic and bandwidth
              ├── parallel     the same split over several devices
              ├── speculation  what drafts gain
              ├── load         requests per second, replicas, cost
              └── measured     a running server's own figures beside the theory

`shape` and `device` are what goes in, with presets of both; `budget` shares out a context among the parts of a prompt.
The formulas and where they come from are in docs/PLANNER.md.
"""

from penstock.capacity.planner import plan
from penstock.capacity.question import Question, question

__all__ = ["Question", "plan", "question"]
