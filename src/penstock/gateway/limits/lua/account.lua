-- Shared by all scripts, which run with it in front. The same rules as gateway/limits/meter.py, over one Redis.
--
-- An account (a key or a tenant) has these keys; times are the Redis server's, in microseconds:
--   A            hash   sums: tokens settled ever (total) and of those that left the window (base), open requests with
--                       their tokens and micro-dollars, spend of the day and month; seeded: when the ledger was last
--                       read (0: never; 1: it knows more)
--   A:requests   zset   reservation id -> start
--   A:settled    zset   total after a settlement -> its time
--   A:open       hash   reservation id -> "server tokens microusd"
--   A:servers    hash   server -> number of its open requests
-- Shared by all accounts:
--   …:servers    zset   server -> end of its lease
--   …:state      hash   epoch: since when every living server has registered its open requests again; last: renewal

local WINDOW = 60000000
local ACCOUNT_TTL_MS = 40 * 86400000  -- of an account without requests; longer than a month
local WINDOW_TTL_MS = 2 * WINDOW / 1000
local SUMS = {'total', 'base', 'settled_at', 'open', 'open_tokens', 'open_microusd',
              'day', 'day_spent', 'month', 'month_spent', 'seeded'}

local now = tonumber(ARGV[1])  -- of tests
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function period()
  -- Days since 1970 and months since the year 0, by Howard Hinnant's civil_from_days.
  local day = math.floor(now / 86400000000)
  local shifted = day + 719468
  local era = math.floor(shifted / 146097)
  local of_era = shifted - era * 146097
  local year = math.floor((of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524)
    - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local march = math.floor((5 * of_year + 2) / 153)  -- 0 is March
  local month = march < 10 and march + 3 or march - 9
  return day, (year + era * 400 + (month <= 2 and 1 or 0)) * 12 + month
end

local function add_settled(a, tokens)
  if tokens > 0 then
    a.total = a.total + tokens
    a.settled_at = math.max(now, a.settled_at)  -- totals and times must have the same order
    redis.call('ZADD', a.name .. ':settled', a.settled_at, string.format('%.0f', a.total))
    redis.call('PEXPIRE', a.name .. ':settled', WINDOW_TTL_MS)
  end
end

local function open_request(a, id, server, tokens, microusd)
  redis.call('HSET', a.name .. ':open', id, string.format('%s %.0f %.0f', server, tokens, microusd))
  redis.call('HINCRBY', a.name .. ':servers', server, 1)
  redis.call('PEXPIRE', a.name .. ':open', ACCOUNT_TTL_MS)
  redis.call('PEXPIRE', a.name .. ':servers', ACCOUNT_TTL_MS)
  redis.call('ZADD', a.name .. ':requests', 'NX', now, id)
  redis.call('PEXPIRE', a.name .. ':requests', WINDOW_TTL_MS)
  a.open, a.open_tokens, a.open_microusd = a.open + 1, a.open_tokens + tokens, a.open_microusd + microusd
end

-- Ends an open request without counting what it used. Returns its tokens, or nil if it is not open.
local function close_request(a, id)
  local text = redis.call('HGET', a.name .. ':open', id)
  if not text then return nil end
  local server, tokens, microusd = string.match(text, '^(%S+) (%d+) (%d+)$')
  redis.call('HDEL', a.name .. ':open', id)
  if redis.call('HINCRBY', a.name .. ':servers', server, -1) <= 0 then
    redis.call('HDEL', a.name .. ':servers', server)
  end
  a.open, a.open_tokens, a.open_microusd = a.open - 1, a.open_tokens - tokens, a.open_microusd - microusd
  return tonumber(tokens)
end

-- The open requests of a dead server may have used all their tokens. Of their money the ledger knows more.
local function close_dead_servers(a, servers)
  for _, server in ipairs(redis.call('HKEYS', a.name .. ':servers')) do
    local lease = tonumber(redis.call('ZSCORE', servers, server) or 0)
    if lease <= now then
      local open = redis.call('HGETALL', a.name .. ':open')
      for i = 1, #open, 2 do
        if string.match(open[i + 1], '^%S+') == server then
          add_settled(a, close_request(a, open[i]))
        end
      end
      redis.call('HDEL', a.name .. ':servers', server)
      a.seeded = math.min(a.seeded, 1)
    end
  end
end

-- The account as it is now. Follow it with `save`.
local function load(name, servers)
  local a, values = {name = name}, redis.call('HMGET', name, unpack(SUMS))
  for i, field in ipairs(SUMS) do a[field] = tonumber(values[i] or 0) end
  local day, month = period()
  if a.day ~= day then a.day, a.day_spent = day, 0 end
  if a.month ~= month then a.month, a.month_spent = month, 0 end
  redis.call('ZREMRANGEBYSCORE', name .. ':requests', '-inf', now - WINDOW)
  a.requests = redis.call('ZCARD', name .. ':requests')
  if a.settled_at <= now - WINDOW then
    a.base = a.total
  else
    local left = redis.call('ZREVRANGEBYSCORE', name .. ':settled', now - WINDOW, '-inf', 'LIMIT', 0, 1)[1]
    if left then
      a.base = tonumber(left)
      redis.call('ZREMRANGEBYSCORE', name .. ':settled', '-inf', now - WINDOW)
    end
  end
  if servers then close_dead_servers(a, servers) end
  a.settled = a.total - a.base
  return a
end

local function save(a)
  local fields = {}
  for _, field in ipairs(SUMS) do
    fields[#fields + 1] = field
    fields[#fields + 1] = a[field]
  end
  redis.call('HSET', a.name, unpack(fields))
  redis.call('PEXPIRE', a.name, ACCOUNT_TTL_MS)
end
