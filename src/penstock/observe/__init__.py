"""What can be seen from outside, made from what the stages tell (`events`).

journal, trace, steps          what is kept: requests, their sequences, the engine's steps; bounded
view, waterfall, explanation   one request, as the API shows it
window, history, measured      the engine over time
replay                         the same requests under static batching, computed
slo, causes, webhook           objectives, alerts and their likely causes
metrics, meter                 for Prometheus
spans                          for OpenTelemetry
gpu, logs                      the GPU's own figures; log lines
watch                          all that watches, in one place
"""
