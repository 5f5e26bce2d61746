"""The engine: a loop over plan, forward and settle, in this process or in its own.

loop.py      the step, and what the engine answers to
local.py     the engine in the caller's process: receiving is what turns the loop
process.py   the engine in a process of its own, as the frontend sees it
serve.py     the other end: what runs in that process
link.py      the socket between the two
"""
