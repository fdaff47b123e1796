-- One request to several limiters at once: all.lua for a single request, which replies
-- with an error if it failed.
local call = redis.pcall
-- <clock?/>
-- <shape/>
local out, size = {}, 0
local skipped, request, times, all = 0, configured + 1, 1, 1
-- <limiters/>
return out
