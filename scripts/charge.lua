-- Takes permits, whether they fit or not. What does not fit is a debt, which is repaid
-- before anybody is allowed again. The blocks of an algorithm's script replace the marked
-- lines.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; the rest is that of the algorithm's script
-- Reply    the words of a run of one request that is allowed
local key, n, times = KEYS[1], ARGV[1] + 0, 1
local call = redis.pcall
-- <clock?/>
-- <config/>
local out, size = {}, 0
-- <load/>
-- <charge/>
-- <seek?/>
-- <take/>
-- <wait?/>
-- <words/>
-- <store/>
return out
