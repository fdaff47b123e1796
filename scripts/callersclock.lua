-- The caller's clock, microseconds since 1970. These blocks replace those of the
-- server's clock. ARGV ends with spare and the clock.

-- <clock>
-- needs:
-- sets: now mark spare
-- mark says in the state that a caller's clock wrote it. spare is what every TTL is
-- longer by, in milliseconds: so far the clocks of the callers may be apart.
local now, mark, spare = ARGV[#ARGV] + 0, '@', ARGV[#ARGV - 1] + 0
-- </clock>

-- <shift>
-- For many.lua: in ARGV spare and the clock come after the requests.
-- needs: ahead
-- sets: ahead
ahead = ahead - 2
-- </shift>
