-- The caller's clock, microseconds since 1970: what takes the place of the server's.

-- <clock>
-- needs:
-- sets: now
local now = ARGV[#ARGV] + 0
-- </clock>

-- <shift>
-- For many.lua: the clock follows the requests.
-- needs: ahead
-- sets: ahead
ahead = ahead - 1
-- </shift>
