-- Renew the lease of a server.   KEYS: servers, state   ARGV: clock, server, lease
-- Returns {whether its lease had lapsed, now}. Then it must register its open requests again.

local server, lease = ARGV[2], tonumber(ARGV[3])
local held = tonumber(redis.call('ZSCORE', KEYS[1], server) or 0)
local last = tonumber(redis.call('HGET', KEYS[2], 'last') or 0)
-- Nobody was here for a whole lease: Redis was away or lost its data, and living servers may look dead.
if now - last >= lease then redis.call('HSET', KEYS[2], 'epoch', now) end
redis.call('HSET', KEYS[2], 'last', math.max(now, last))
redis.call('ZADD', KEYS[1], now + lease, server)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 86400000000)
return {held <= now and 1 or 0, now}
