"""API keys: who sends a request, and what that key may do.

identity       the identity of a request: tenant, key, scopes, models, limits
tiers          names of priority tiers, and their order
directory      where the auth middleware looks keys up
configured     the keys of `api_key` and `admin_key`
token_limits   a key's default and largest `max_tokens`

No HTTP, and no SQL at import.
"""
