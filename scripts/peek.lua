-- Answers what the algorithm's script would answer to one request, and writes nothing.
-- KEYS, ARGV and reply are those of the algorithm's script, whose blocks replace the
-- marked lines.
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall
-- <clock?/>
-- <config/>
-- <load/>
-- <fit/>
-- <take/>
-- <wait?/>
-- <answer/>
