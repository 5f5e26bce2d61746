-- The live use of accounts.   KEYS: servers, accounts…   ARGV: clock

local uses = {}
for i = 2, #KEYS do
  uses[i - 1] = {}
  if redis.call('EXISTS', KEYS[i]) == 1 then
    local a = load(KEYS[i], KEYS[1])
    save(a)
    uses[i - 1] = {a.requests, a.total - a.base, a.open_tokens, a.open, a.day_spent, a.month_spent, a.open_microusd}
  end
end
return uses
