"""Traces of requests: `journal` listens to events and keeps `records` of requests and, per `replica`, a `step_ring`;
`timeline`, `step_window`, `prefix_explanation` and `views` make of them what the API shows; `otel` exports spans."""
