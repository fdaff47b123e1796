-- Token bucket and leaky bucket with a continuous flow. They mirror each other:
-- "missing" is what a token bucket lacks of full and a leaky one has of level.
-- The state is the instant at which nothing is missing any more, as in GCRA
-- (ITU-T I.371), and the size of a permit, so that a changed rate finds out how
-- many permits were missing.
--
-- ARGV   [2] capacity, in units; [3] units a permit; [4] units a microsecond
--        restores. The caller picks the unit so that all are whole.
-- State  "<instant, 16 digits>/<units a permit>", and unless [4] is 1
--        "/<units a microsecond restores>+<units missing beyond the instant>"
-- Answer units missing before the call, negative when denied
-- Words  granted, units missing before the run
-- How permits are taken stands in inherit.lua.

--- config
local capacity, permit, flow = ARGV[2] + 0, ARGV[3], ARGV[4]
local sub = string.sub

--- load
local missing, stale = 0, false
local state = call('GET', key)
if state then
  if state.err then return state end
  local at = tonumber(sub(state, 1, 16))
  if at and at >= 0 and at < 2 ^ 53 and flow == '1' and sub(state, 18) == permit then
    missing = at - now
  else
--@ inherit
    if not unit then return {err = 'CORRUPT no state of a bucket'} end
    if anchor then -- it refilled in steps
      missing = missing - math.max(now - anchor, 0) * flow
      stale = true
    end
  end
  if missing < 0 then
    missing = 0
  elseif missing > capacity then -- the clock stepped back, or the capacity shrank
    missing = capacity
    stale = true
  end
end

--- store
local wait = missing
if flow == '1' then
  state = string.format('%016d/%s', now + wait, permit)
else
  local part = missing % flow
  wait = (missing - part) / flow
  state = string.format('%016d/%s/%s+%d', now + wait, permit, flow, part)
end
-- A little more than needed, and odd: Redis 7.2.0 writes 100000000 as 1e+8.
local ttl = wait / 1000
redis.call('SET', key, state, 'PX', ttl - ttl % 2 + 3)

--- answer
if granted == 0 then return -before end
return before

--- emit
out[size + 1] = granted
out[size + 2] = before
size = size + 2
