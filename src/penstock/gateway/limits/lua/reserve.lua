-- Reserve with all accounts, or with none.
-- KEYS: servers, state, done:<id>, accounts…
-- ARGV: clock, id, server, tokens, microusd, warm-up, whether there is a ledger, five limits of each account (-1: none)
-- Returns {outcome, now, requests and tokens of each account, obstacles}.

local OPEN_WAIT = 1000000
local servers, state, done = KEYS[1], KEYS[2], KEYS[3]
local id, server = ARGV[2], ARGV[3]
local tokens, microusd, warm_up = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

-- How long until `amount` of the settled tokens have left.
local function settled_wait(a, amount)
  local key = a.name .. ':settled'
  local low, high = 0, redis.call('ZCARD', key) - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if tonumber(redis.call('ZRANGE', key, middle, middle)[1]) >= a.base + amount then
      high = middle
    else
      low = middle + 1
    end
  end
  return redis.call('ZRANGE', key, low, low, 'WITHSCORES')[2] + WINDOW - now
end

local function request_wait(a, amount)
  return redis.call('ZRANGE', a.name .. ':requests', amount - 1, amount - 1, 'WITHSCORES')[2] + WINDOW - now
end

local function token_wait(a, excess)
  if excess <= a.settled then return settled_wait(a, excess), 0 end
  if excess <= a.open_tokens then return OPEN_WAIT, 1 end
  return math.max(OPEN_WAIT, settled_wait(a, excess - a.open_tokens)), 0
end

-- An obstacle: {account, limit, most, used, asked, wait (-1: until the day or month ends), only open requests}.
local function add_obstacles(found, number, a, limits)
  local requests_most, tokens_most, open_most, day_most, month_most = unpack(limits)
  if requests_most >= 0 and a.requests >= requests_most then
    local wait = request_wait(a, a.requests + 1 - requests_most)
    found[#found + 1] = {number, 0, requests_most, a.requests, 1, wait, 0}
  end
  if open_most >= 0 and a.open >= open_most then
    found[#found + 1] = {number, 2, open_most, a.open, 1, OPEN_WAIT, 1}
  end
  local used = a.settled + a.open_tokens
  if tokens_most >= 0 and tokens > 0 and used + tokens > tokens_most then
    local wait, only_open = token_wait(a, used + tokens - tokens_most)
    found[#found + 1] = {number, 1, tokens_most, used, tokens, wait, only_open}
  end
  for limit, budget in pairs({[3] = {day_most, a.day_spent}, [4] = {month_most, a.month_spent}}) do
    local most, spent = unpack(budget)
    if most >= 0 and microusd > 0 and spent + a.open_microusd + microusd > most then
      local only_open = spent + microusd <= most
      found[#found + 1] = {number, limit, most, spent + a.open_microusd, microusd, only_open and OPEN_WAIT or -1,
                           only_open and 1 or 0}
    end
  end
end

local function use(a)
  local last = redis.call('ZRANGE', a.name .. ':requests', -1, -1, 'WITHSCORES')[2]
  local tokens_reset = a.open_tokens > 0 and WINDOW or a.settled > 0 and a.settled_at + WINDOW - now or 0
  return {a.requests, last and last + WINDOW - now or 0, a.settled + a.open_tokens, tokens_reset}
end

local epoch = tonumber(redis.call('HGET', state, 'epoch') or now)
if now < epoch + warm_up then return {'warming', now, {}, {{epoch + warm_up - now}}} end
if tonumber(redis.call('ZSCORE', servers, server) or 0) <= now then return {'lapsed', now, {}, {}} end
if redis.call('EXISTS', done) == 1 then return {'abandoned', now, {}, {}} end

local accounts, uses, found, open, unseeded = {}, {}, {}, 0, {}
for i = 4, #KEYS do
  local a, limits = load(KEYS[i], servers), {}
  for j = 1, 5 do limits[j] = tonumber(ARGV[7 + (i - 4) * 5 + j]) end
  accounts[i - 3] = a
  open = open + redis.call('HEXISTS', a.name .. ':open', id)
  if ARGV[7] == '1' and a.seeded < epoch then unseeded[#unseeded + 1] = i - 4 end
  add_obstacles(found, i - 4, a, limits)
end
local outcome = #unseeded > 0 and 'unseeded' or open > 0 and 'reserved' or #found > 0 and 'rejected' or 'reserved'
for _, a in ipairs(accounts) do
  if outcome == 'reserved' and open == 0 then
    open_request(a, id, server, tokens, microusd)
    a.requests = a.requests + 1
  end
  save(a)
  uses[#uses + 1] = use(a)
end
return {outcome, now, uses, outcome == 'unseeded' and {unseeded} or found}
