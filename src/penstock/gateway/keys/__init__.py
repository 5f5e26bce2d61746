"""API keys: who sends a request, and what that key may do.

identity       the identity of a request: tenant, key, scopes, models, limits
tiers          names of priority tiers, and their order
token_limits   a key's default and largest `max_tokens`
directory      where the auth middleware looks keys up
configured     the keys of `api_key` and `admin_key`
stored_keys    the keys of the database, in memory
key_format     the form of a key, its id and hash
records        keys and tenants as they are stored, and what can be set of them
tables, store  the same in SQL: every change is one transaction, with its entry in the audit log
audit          the audit log
manager        the keys of a running server, which follow the database

    header ─► ApiKeyMiddleware ─► StoredKeys.identify ─► Identity        no query, no wait
    admin route ─► KeyManager.change ─► KeyStore ─┐
    penstock keys, another server ────────────────┴► database ─► KeyManager polls ─► StoredKeys.apply

No HTTP; only `tables` and `store` import SQLAlchemy.
"""
