"""The engine: a loop over plan, forward, sample and settle, in the caller's process or in its own.

loop.py      one step of the engine, and the queries it answers
local.py     the engine in the caller's process: `receive` runs the loop
process.py   the engine in a process of its own, as the frontend sees it
serve.py     the engine process's side: receive, step, send
worker.py    entry point of the engine process
ipc.py       the socket between the two processes

rank_group.py   the other ranks of a tensor-parallel engine, as rank 0 has them
rank_worker.py  entry point of such a rank
"""
