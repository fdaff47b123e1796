-- Driver: what one request for one key would be answered. Writes nothing.
-- KEYS, ARGV and reply are those of one.lua.
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall
--@ clock
--@ config
--@ load
--@ take
--@ answer
