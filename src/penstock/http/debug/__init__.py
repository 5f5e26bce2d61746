"""The debug routes, /observe and /slo: what happens inside a running server, by topic. They read the observer and query
the engine; docs/OBSERVE.md describes them."""
