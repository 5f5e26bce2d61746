-- What the ledger knows of an account: all of one that is new here; otherwise its spend, if that is more than here.
-- KEYS: state, account   ARGV: clock, spend of the day, of the month, requests and tokens of the last 60 seconds

local a = load(KEYS[2])
local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch') or now)
-- Another server was faster: since then all is counted here, and the ledger may have requests that are still open here.
if a.seeded >= epoch then return 0 end
local day, month = tonumber(ARGV[2]), tonumber(ARGV[3])
if a.seeded > 0 then
  a.day_spent, a.month_spent = math.max(a.day_spent, day), math.max(a.month_spent, month)
else
  a.day_spent, a.month_spent = a.day_spent + day, a.month_spent + month
  for i = 1, tonumber(ARGV[4]) do redis.call('ZADD', a.name .. ':requests', now, 'ledger ' .. i) end
  redis.call('PEXPIRE', a.name .. ':requests', WINDOW_TTL_MS)
  add_settled(a, tonumber(ARGV[5]))
end
a.seeded = now
save(a)
return 1
