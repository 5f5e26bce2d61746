"""Engines on the nodes of a Ray cluster (`penstock serve --cluster`).

ray_cluster   joins a cluster, or starts one on this machine; places engines by CPUs and GPUs
engine_actor  runs on a node: an actor that starts an engine process and lives as long as that does
ray_engine    an engine of the cluster as the frontend sees it
tcp_link      frontend ◄─► engine over TCP: encrypted, each side knows the other's key
wire_times    times of messages between hosts, whose clocks differ
"""
