-- Requests to several limiters at once, decided as if made one after the other: each
-- request takes its permits from every limiter, or from none. The limiters are decided
-- one inside the other (all_limiter.lua): every key is read before any is written.
--
-- KEYS   for each request the key of each limiter
-- ARGV   the limiters' own, in their order; then for each request: for how many equal
--        requests it stands, and the permits for each limiter, of one in flight
--        "<permits>h<id>"; last spare and the caller's clock, if that decides
--        (callersclock.lua)
-- Reply  for each request and each limiter, from the last limiter to the first: how many
--        of the equal requests this limiter alone would allow, then its words of a run,
--        whose first one is the number that all limiters allow. For a request that
--        failed there is one -1 instead, and its keys were left as they were (unless Redis
--        refused a command that comes after the first command that writes). There is one -2
--        for a request for which there was no time, see many.lua
-- <if several>
-- These requests are of several groups of limiters, which differ in their arguments only. So
-- ARGV begins with those of each group, once; and behind the permits of a request is how many
-- arguments are in front of those of its group.
-- </if several>
local call = redis.pcall
-- <limits?/>
local budget, late = 500, {}
-- <clock?/>
-- <shape/>
local out, size = {}, 0
-- <if several>
local ahead = #ARGV - #KEYS / limiters * (limiters + 2) -- ARGV in front of the requests
-- <shift?/>
-- </if several>

local function decide(skipped, request)
  if budget < 0 then return late end
  -- <if several>
  local front = ARGV[request + limiters + 1] + 0
  -- </if several>
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
end

for i = 0, #KEYS / limiters - 1 do
  local before = size
  -- <unless several>
  local ok, failed = pcall(decide, i * limiters, configured + 1 + i * (limiters + 1))
  -- </unless several>
  -- <if several>
  local ok, failed = pcall(decide, i * limiters, ahead + 1 + i * (limiters + 2))
  -- </if several>
  if not ok or failed then
    if ok and failed.outside then return failed end -- of calendarwindow.lua: nothing was done
    for j = before + 2, size do
      out[j] = nil
    end
    size = before + 1
    out[size] = -1
    if failed == late then out[size] = -2 end
  end
end
-- <flush?/>
return out
