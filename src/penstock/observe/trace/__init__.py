"""Traces of requests: what is kept of each, its timeline of stages and spans, and OpenTelemetry export."""
