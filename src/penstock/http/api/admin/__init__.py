"""Routes for operators: models, keys, tenants and the audit log. All need a key with the scope `admin`, where there are
keys. Without, every client that reaches the server may use them.

    actions        who acts, and the entry in the audit log
    bodies         keys, tenants and audit entries as JSON
    managed_model  models as operators see them
    model_routes   models are added, loaded, unloaded and removed while the server runs
    key_routes     keys are created, changed, rotated and revoked
    tenant_routes  tenants with their limits and weights
    limit_routes   the live use of limits
    audit_routes   the audit log
"""
