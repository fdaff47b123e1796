-- What one request for one key would be answered. It writes nothing. KEYS, ARGV and
-- reply are those of the algorithm's script, whose blocks take the marked places.
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall
-- <clock?/>
-- <config/>
-- <load/>
-- <fit/>
-- <take/>
-- <wait?/>
-- <answer/>
