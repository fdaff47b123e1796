-- Driver: one request for one key.
--
-- KEYS[1]  the key
-- ARGV     [1] permits, then the algorithm's, last the caller's clock in
--          microseconds where it decides
-- Reply    the algorithm's answer
--
-- n stays the string it came as: arithmetic takes it, comparison does not.
-- The marked lines stand for the sections of the algorithm's file. Redis runs
-- them as one piece: a function for each would cost a closure in every call.
-- What is not stored may have to be kept for longer, where a rule has changed.
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall
--@ clock
--@ config
--@ load
--@ take
if granted > 0 or stale then
--@ store
else
--@ keep
end
--@ answer
