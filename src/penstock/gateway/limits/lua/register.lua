-- Put an open request back that Redis no longer knows, without a check of limits: it runs.
-- KEYS: done:<id>, accounts…   ARGV: clock, id, server, tokens, microusd

if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
for i = 2, #KEYS do
  local a = load(KEYS[i])
  if redis.call('HEXISTS', a.name .. ':open', ARGV[2]) == 0 then
    open_request(a, ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
    save(a)
  end
end
return 1
