-- Fixed window that keeps its start, for a clock that is not Redis's or for
-- windows that start at given times.
--
-- ARGV   [2] limit; [3] window, microseconds; [4] offset of the windows from
--        1970, microseconds, or "first" for windows that open with their first permit
-- State  "<permits used>@<start, microseconds>"
-- Words  granted, permits left before the run, microseconds left of the window

--- config
local limit, window, offset = ARGV[2] + 0, ARGV[3] + 0, ARGV[4]

--- load
local start, used, stale = now, 0, false
if offset ~= 'first' then
  start = now - (now - offset) % window
end
local state = call('GET', key)
if state then
  if state.err then return state end
  local count, at = string.match(state, '^(%d+)@(%d+)$')
  if not at then
    count = string.match(state, '^(%d+)%d%d%d%d%d%d$') -- as fixedwindow.lua leaves it
    if not count then return {err = 'CORRUPT no state of a fixed window'} end
    used = count + 0
  elseif now < at + 0 then -- the clock stepped back
    used = count + 0
    if offset ~= 'first' and at + 0 == start + window then
      start = at + 0 -- over the window's start: opened anew it would grant twice
    else
      stale = true
    end
  elseif now - at < window then -- it lasts to its end, also if the alignment changed
    start = at + 0
    used = count + 0
  end
end

--- take
local granted, room = times, math.max(limit - used, 0)
local before = room
if n * granted > room then
  granted = (room - room % n) / n
end
used = used + granted * n

--- store
local ttl = (start + window - now) / 1000
redis.call('SET', key, string.format('%d@%d', used, start), 'PX', ttl - ttl % 2 + 3)

--- keep
-- Denied under a longer window than the one that set the TTL.
if state and redis.call('PTTL', key) < (start + window - now) / 1000 - 1 then
--@ store
end

--- answer
return {granted, before, start + window - now}

--- emit
out[size + 1] = granted
out[size + 2] = before
out[size + 3] = start + window - now
size = size + 3
