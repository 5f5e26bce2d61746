"""Observability: everything that a server shows, computed from the events that its stages emit. Nothing here decides
anything about a request. Each thing is kept per replica (`flow.identity.Source`) and bounded.

events          the events, as typed structs
trace/          the journal of requests and steps, one request's timeline, views for the API, OpenTelemetry spans
metrics         Prometheus
history         the last hour in points of two seconds
performance     throughput, latency and step costs, measured
batching_replay recorded requests under static batching, computed
slo/            objectives, alerts, their likely causes, the webhook
observer        the task that samples and evaluates; what the debug routes read
live_feed       the live stream of figures, requests and steps
gpu, logs       NVML figures; log formats
"""
