-- Looks at a key for one request for one permit: takes nothing and writes nothing.
-- KEYS and ARGV are those of the algorithm's script, whose blocks replace the marked
-- lines. The reply is the words of a run of one request, before it has taken anything.
-- <limits?/>
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall
local budget = 0 -- of an execution for many requests
-- <clock?/>
-- <config/>
-- <hold?/>
local out, size = {}, 0
-- <load/>
-- <fit/>
-- <seek?/>
-- <wait?/>
-- <words/>
return out
