-- Token bucket that refills in steps, counted from the permit that left it less
-- than full.
--
-- ARGV   [2] capacity, in units; [3] units a permit; [4] units a microsecond
--        restores; [5] microseconds a step
-- State  "<instant of the last step, 16 digits>/<units a permit>+<units missing then>"
-- Words  granted, units missing before the run, microseconds since the last step
-- How permits are taken stands in inherit.lua.

--- config
local capacity, permit, flow, every = ARGV[2] + 0, ARGV[3], ARGV[4], ARGV[5] + 0

--- load
local missing, stale, since = 0, false, now
local state = call('GET', key)
if state then
  if state.err then return state end
--@ inherit
  if not unit then return {err = 'CORRUPT no state of a bucket'} end
  if missing > capacity then missing = capacity end
  since = anchor or now
  if not anchor then stale = true end -- it refilled continuously
  if now < since then -- the clock stepped back
    since = now
    stale = true
  end
  local steps = (now - since) - (now - since) % every
  since = since + steps
  missing = missing - steps * flow
end
if missing <= 0 then -- full: the steps count from the next permit
  missing = 0
  since = now
end

--- store
local steps = math.ceil(missing / (every * flow))
local ttl = (since + steps * every - now) / 1000
redis.call('SET', key, string.format('%016d/%s+%d', since, permit, missing),
  'PX', ttl - ttl % 2 + 3)

--- keep
-- Denied under longer steps than those that set the TTL.
if state and redis.call('PTTL', key) < (since + math.ceil(missing / (every * flow)) * every - now) / 1000 - 1 then
--@ store
end

--- answer
return {granted, before, now - since}

--- emit
out[size + 1] = granted
out[size + 2] = before
out[size + 3] = now - since
size = size + 3
