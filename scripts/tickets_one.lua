-- One request to a limiter with tickets (tickets.lua). KEYS, ARGV and words are those of the algorithm's script, and of
-- tickets.lua.
-- <limits/>
local key, n, times = KEYS[1], ARGV[1] + 0, 1
local call = redis.pcall
local budget = 0 -- of an execution for many requests
-- <clock/>
-- <config/>
local out, size = {}, 0
-- <load/>
-- <fit/>
-- <seek/>
-- <take/>
-- <wait?/>
-- <words/>
if allowed > 0 or repair then
  -- <store/>
else
  -- <expire?/>
end
return out
