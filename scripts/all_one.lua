-- Equal requests to several limiters at once: all.lua for one line of requests, which replies
-- with an error if they failed.
local call = redis.pcall
-- <limits?/>
local budget = 0 -- of an execution for many requests
-- <clock?/>
-- <shape/>
local out, size = {}, 0
local skipped, request = 0, configured + 1
local times = ARGV[request] + 0
local all = times
-- <if known>
-- <known/>
if not known then
-- </if known>
-- <limiters/>
-- <if known>
-- <remember/>
end
size = size + 1
out[size] = known and 1 or 0
-- </if known>
-- <flush?/>
return out
