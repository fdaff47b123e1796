-- Takes as many single permits of a key as fit, up to a number. The blocks of an
-- algorithm's script replace the marked lines.
--
-- KEYS[1]  the key
-- ARGV     [1] the most permits to take; the rest is that of the algorithm's script
-- Reply    the words of a run of so many requests for one permit
local key, n, times = KEYS[1], 1, ARGV[1] + 0
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
return out
