"""The KV cache as bookkeeping: which block holds which tokens, and who may use it. No memory is touched here.

manager.CacheManager   what the scheduler talks to: match, claim, extend, advance, forget, release
pool.Pool              the blocks of one cache group: held, cached, resting or free
prefix.Chain           the keys under which full blocks are found again
recall.Recall          what the cache holds and lately held
explain                why so much of a prompt was found, and no more
census                 a map of the blocks and the tree of prefixes, for people
"""

from penstock.cache.eviction_history import Recall
from penstock.cache.manager import CacheManager, Hit, Table
from penstock.cache.pool import Usage
from penstock.cache.prefix import Chain, Link

__all__ = ["CacheManager", "Chain", "Hit", "Link", "Recall", "Table", "Usage"]
