-- Token bucket that refills in steps. The steps count from the first permit taken
-- from the full bucket.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] capacity, units; [3] units a permit; [4] units that a
--          microsecond restores; [5] microseconds a step; last the caller's clock,
--          microseconds, if that decides
-- State    "<instant of the last step, 16 digits>/<units a permit>+<units missing then>"
-- Reply    the words of a run
-- Words    requests allowed, units missing before the run, microseconds since the
--          last step
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

-- <config>
-- needs:
-- sets: capacity permit flow every
local capacity, permit, flow, every = ARGV[2] + 0, ARGV[3], ARGV[4], ARGV[5] + 0
-- </config>

-- <load>
-- needs: call key now capacity permit flow every
-- sets: state missing repair since
local missing, repair, since = 0, false, now
local state = call('GET', key)
if state then
  if state.err then return state end
  -- The block inherit is the same as in bucket.lua. A denied call stores the state of
  -- another configuration too, as a state of this configuration.
  -- <inherit>
  -- Reads the state of a bucket of any configuration. The units missing are those at
  -- the anchor, which is the last step of a stepped bucket, or those at now if there
  -- is no anchor. Parts of a permit are rounded up, so that a changed rate never
  -- allows more.
  -- needs: now state permit flow missing repair
  -- sets: missing repair anchor
  local anchor
  local instant, unit, tail = string.match(state, '^(%d+)/([1-9]%d*)(.*)$')
  if unit then
    local speed, rest = string.match(tail, '^/([1-9]%d*)%+(%d+)$')
    if speed then
      missing = (instant - now) * speed + rest
      if speed ~= flow then repair = true end
    elseif tail == '' then
      missing = instant - now
      if flow ~= '1' then repair = true end
    else
      rest = string.match(tail, '^%+(%d+)$')
      if rest then
        missing = rest + 0
        anchor = instant + 0
      else
        unit = nil
      end
    end
  end
  if not unit then return {err = 'CORRUPT no state of a bucket'} end
  if unit ~= permit then
    local part = missing % unit
    missing = (missing - part) / unit * permit + math.ceil(part * permit / unit)
    if part * permit >= 2 ^ 53 then missing = missing + 1 end -- the product was rounded
    repair = true
  end
  -- </inherit>
  if missing > capacity then missing = capacity end
  since = anchor or now
  if not anchor then repair = true end -- it refilled continuously
  if now < since then -- the clock stepped back
    since = now
    repair = true
  end
  local steps = (now - since) - (now - since) % every
  since = since + steps
  missing = missing - steps * flow
end
if missing <= 0 then -- full: the steps count from the next permit
  missing = 0
  since = now
end
-- </load>

-- <fit>
-- needs: n times capacity permit missing
-- sets: cost allowed before
local cost, allowed, before = n * permit, times, missing
local room = capacity - missing
if cost * allowed > room then
  allowed = (room - room % cost) / cost
end
-- </fit>

-- <take>
-- needs: cost allowed missing
-- sets: missing
missing = missing + allowed * cost
-- </take>

if allowed > 0 or repair then
  -- <store>
  -- needs: key now permit flow every missing since
  -- sets:
  local steps = math.ceil(missing / (every * flow))
  local ttl = (since + steps * every - now) / 1000
  redis.call('SET', key, string.format('%016d/%s+%d', since, permit, missing),
    'PX', ttl - ttl % 2 + 3)
  -- </store>
else
  -- <expire>
  -- A denial under longer steps than those that set the TTL lengthens the TTL.
  -- needs: key now permit flow every state missing since
  -- sets:
  local steps = math.ceil(missing / (every * flow))
  local ttl = (since + steps * every - now) / 1000
  if state and redis.call('PTTL', key) < ttl - 1 then
    redis.call('SET', key, string.format('%016d/%s+%d', since, permit, missing),
      'PX', ttl - ttl % 2 + 3)
  end
  -- </expire>
end

-- <answer>
-- needs: now allowed before since
-- sets:
return {allowed, before, now - since}
-- </answer>

--[[ In place of the answer when a run of requests is decided:
-- <words>
-- needs: out size now allowed before since
-- sets: size
out[size + 1] = allowed
out[size + 2] = before
out[size + 3] = now - since
size = size + 3
-- </words>
]]
