"""The schema of keys, tenants, usage and what servers share, as revisions in `versions`. A revision is never changed
once it is released: a change of the tables is a new one. Revisions import nothing of Penstock, since tables change and
revisions do not."""
