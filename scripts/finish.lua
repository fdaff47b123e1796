-- Ends what calls to several limiters took: settles their tickets and releases their holds, each as if on its own.
-- An operation that fails leaves its key as it was, and the others are done (unless the user may not run a command that
-- comes after the first command that writes).
--
-- KEYS   for each request the key of each limiter
-- ARGV   the limiters' own, in their order; then for each request: "1", and ",1F1" for each equal one behind it, and
--        the operation of each limiter: one that charges, gives back or settles (operations.lua), or a release
--        (holds.lua); last spare and the caller's clock, if that decides (callersclock.lua)
-- Reply  for each request and limiter how many words the reply to its operation has, 0 if that failed, and then these.
--        There is one -2 for a request for which there was no time, see many.lua
-- <if several>
-- The requests are of several groups of limiters, see all.lua.
-- </if several>
local call = redis.pcall
-- <limits?/>
local budget = 500
-- <clock?/>
-- <shape/>
local out, size = {}, 0
-- <if several>
local ahead = #ARGV - #KEYS / limiters * (limiters + 2) -- ARGV in front of the requests
-- <shift?/>
-- </if several>
for i = 0, #KEYS / limiters - 1 do
  -- <unless several>
  local skipped, request = i * limiters, configured + 1 + i * (limiters + 1)
  -- </unless several>
  -- <if several>
  local skipped, request = i * limiters, ahead + 1 + i * (limiters + 2)
  local front = ARGV[request + limiters + 1] + 0
  -- </if several>
  local _, more = string.gsub(ARGV[request], ',', '')
  for _ = 0, more do
    if i > 0 and budget < 0 then
      size = size + 1
      out[size] = -2
      break
    end
    -- <limiters/>
  end
end
-- <flush?/>
return out
