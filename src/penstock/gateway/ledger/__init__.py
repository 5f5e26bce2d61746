"""The ledger: what each request used and what that costs, one record per request.

record      a usage record
cost        micro-dollars of a request, by the price of its model
tables      the table of records
store       SQL over that table; blocks
ledger      writes records in groups, from a thread; whether they can be written
queries     sums of records by key, tenant, model and day
metrics     tokens and cost for Prometheus

`gateway.accounting` fills it. No HTTP, and no SQL at import: `store` and `tables` are imported when a server has a
ledger.
"""
