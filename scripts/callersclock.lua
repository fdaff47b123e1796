-- The caller's clock, microseconds since 1970. These blocks replace those of the
-- server's clock.

-- <clock>
-- needs:
-- sets: now
local now = ARGV[#ARGV] + 0
-- </clock>

-- <shift>
-- For many.lua: in ARGV the clock comes after the requests.
-- needs: ahead
-- sets: ahead
ahead = ahead - 1
-- </shift>
