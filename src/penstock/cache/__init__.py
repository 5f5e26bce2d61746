"""The KV cache as bookkeeping: which block holds which tokens, and which sequences use it. No memory is touched here.

manager.CacheManager               the interface: lookup_prefix, allocate, extend, advance, uncache, release
holding.Holding                    blocks on their way between two engines, which no sequence holds
pool.Pool                          the blocks of one cache group: held, cached, resting or free; evicts
prefix_chain.PrefixChain           the hash chain of a sequence's full blocks
prefix_index.PrefixIndex           prefix lookup: from the keys of a chain to blocks
eviction_history.EvictionHistory   what the cache holds and recently evicted
explain                            why a prompt hits or misses the prefix cache
snapshot                           a map of the blocks and the tree of prefixes, for the debug API
"""

from penstock.cache.eviction_history import EvictionHistory
from penstock.cache.holding import Holding
from penstock.cache.manager import BlockTable, CacheManager, PrefixHit
from penstock.cache.pool import Usage
from penstock.cache.prefix_chain import ChainLink, PrefixChain

__all__ = ["BlockTable", "CacheManager", "ChainLink", "EvictionHistory", "Holding", "PrefixChain", "PrefixHit", "Usage"]
