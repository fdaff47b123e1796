-- The clocks a driver can read, in microseconds since 1970.

--- server
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

--- caller
local now = ARGV[#ARGV] + 0

--- caller shift
first = first - 1 -- the clock follows the requests
