"""Limits that hold: each request reserves what it may use before it is dispatched, and settles what it has used.

reservation    what a request may use, and the handle of what is reserved for it
limiter        the protocol of limiters, and what they restore from the ledger after a start

No HTTP, no SQL; redis-py is imported only with the setting `redis`.
"""
