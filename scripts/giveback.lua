-- Gives permits back that estimate.lua has taken. The blocks of an algorithm's script
-- replace the marked lines.
--
-- KEYS[1]  the key
-- ARGV     [1] "<permits>/<where>/<which>", the last two from the ticket; the rest is that
--          of the algorithm's script
-- Reply    the permits given back, rounded up
local key, n, times = KEYS[1], 1, 1
local call = redis.pcall
-- <clock?/>
-- <config/>
local back, where, which = string.match(ARGV[1], '^(%d+)/(%d+)/(%d+)$')
back = back + 0
-- <load/>
-- <giveback/>
return {given}
