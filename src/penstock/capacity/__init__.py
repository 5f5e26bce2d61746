"""Capacity planning: memory, TTFT, TPOT, prompt and output tok/s, replicas and cost of a model on given hardware, from
arithmetic alone. No torch, no engine.

question ──► planner ──► answer
              ├── memory       weights, KV per token, longest context, concurrent requests
              ├── speed        prefill and decode from arithmetic and bandwidth
              ├── parallel     the same split over several devices
              ├── speculation  the gain of draft tokens
              ├── load         requests per second, replicas, cost
              ├── prices       the same load at an API's prices
              ├── calibrate    efficiencies from rates measured elsewhere
              ├── support      what of it Penstock cannot run yet
              └── measured     a running server's own figures beside the theory

`shape` and `device` are the inputs, with presets of both; `budget` counts the parts of a prompt against the context.
The formulas and where they come from are in docs/PLANNER.md.
"""

from penstock.capacity.planner import plan
from penstock.capacity.question import Question, question

__all__ = ["Question", "plan", "question"]
