-- Looks at the keys of several limiters: takes nothing and writes nothing. KEYS, ARGV and
-- reply are those of all.lua for a single request.
local call = redis.pcall
-- <limits?/>
local budget = 0 -- of an execution for many requests
-- <clock?/>
-- <shape/>
local out, size = {}, 0
local skipped, request, times = 0, configured + 1, 1
-- <limiters/>
return out
