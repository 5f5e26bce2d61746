"""KV blocks from the cache of one engine to that of another, for prefill and decode pools (docs/SCALING.md).

channel         one authenticated connection: frames over a Unix socket or TCP
segment         shared memory, through which blocks travel between processes of a host
messages        what the two sides say to each other
exporter        the side that has the blocks: listens, and sends them from threads beside the engine's loop
importer        the side that wants them: one thread per transfer, which writes into blocks of its own cache
block_transfers both, as queries of the engine's loop, which alone changes the cache

A block travels under the key that the prefix cache has for it (`flow.prefix`): both engines compute it from the tokens,
so what arrives is cached like a block of the engine's own. A transfer that fails leaves what has arrived whole; the
rest is computed.
"""
