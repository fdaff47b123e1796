-- Decides one request, and says where its permits are, so that giveback.lua finds them.
-- The blocks of an algorithm's script replace the marked lines.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; the rest is that of the algorithm's script
-- Reply    the words of a run of one request; then the two of the ticket, which mean
--          nothing if the request is denied
local key, n, times = KEYS[1], ARGV[1] + 0, 1
local call = redis.pcall
-- <clock?/>
-- <config/>
local out, size = {}, 0
-- <load/>
-- <fit/>
-- <seek?/>
-- <take/>
-- <wait?/>
-- <words/>
if allowed > 0 or repair then
  -- <store/>
else
  -- <expire?/>
end
-- <ticket/>
return out
