"""Limits that hold: each request reserves what it may use before it is dispatched, and settles what it has used.

reservation      what a request may use, and the handle of what is reserved for it
account          who has limits (a key, a tenant), and how much of them is in use
limiter          the protocol of limiters, and what they restore from the ledger after a start
sliding_window   the sum of amounts within the last 60 seconds
period           UTC days and months
meter            the live use of one account, and what keeps a request out of its limits
rejection        the errors of requests that do not fit now, or never
headers          `x-ratelimit-*`
local_limiter    the limiter of a single server
redis_limiter    the limiter of several servers: leases, settlements that wait for Redis, the ledger
redis_store      the scripts in `lua/`, run with timeouts
counts, metrics  what a limiter has counted, for Prometheus

No HTTP, no SQL; redis-py is imported only with the setting `redis`.
"""
