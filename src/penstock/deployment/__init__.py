"""A model as the HTTP layer sees it: requests go in, tickets with their output come back.

protocol      ServedModel and Deployment: what the router picks among, local or not
registry      the models of a server by name
local_model   a model that this server runs: files, pipeline, replicas
replica_set   the replicas of a model
autoscaler    changes their number with the load, as scale_policy decides; scaling_metrics has the demand
prefill_pool  prefill replicas, which compute long prompts for the others: a handoff takes the blocks there
residency     which local models are in memory
replica       one engine process under supervision, for an event loop; hang_watch notices one that hangs,
              engine_queries sends it queries, outbox holds Submits that the engine does not have yet
prefix_tracker what a replica's prefix cache is expected to hold
upstream      another OpenAI-compatible server as a deployment, upstream_model the model it serves here;
              upstream_body, _events, _answer, _usage translate, upstream_client is the HTTP client
dispatch      frames of the engine to the tickets of waiting clients
ticket        a client's request: chunks until the client takes them, and lanes for single tokens
sync_driver   the same for the library, in a plain loop
"""
