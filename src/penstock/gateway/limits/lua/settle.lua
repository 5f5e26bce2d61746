-- End a request, which may be unknown here: then what it used counts all the same.
-- KEYS: done:<id>, accounts…   ARGV: clock, id, tokens and microusd used, whether to forget that there was a request

local DONE_TTL_MS = 600000  -- later repetitions would count twice
local id, tokens, microusd = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

if not redis.call('SET', KEYS[1], '1', 'NX', 'PX', DONE_TTL_MS) then return 0 end
for i = 2, #KEYS do
  local a = load(KEYS[i])
  close_request(a, id)
  add_settled(a, tokens)
  a.day_spent, a.month_spent = a.day_spent + microusd, a.month_spent + microusd
  if ARGV[5] == '1' then redis.call('ZREM', a.name .. ':requests', id) end
  save(a)
end
return 1
