-- A log of grants under one rule: the sliding window in sub-windows, and the
-- sliding log of a single rule. It does what log.lua does, without tables.
--
-- ARGV   [2] resolution, microseconds; [3] 1, the number of rules; [4] limit;
--        [5] window, microseconds
-- Words  as in log.lua

--- config
local grain, limit, window = ARGV[2] + 0, ARGV[4] + 0, ARGV[5] + 0

--- load
local slot, edge = now - now % grain + grain - 1, now - window
--@ open
local renew = last > 0 and instant <= edge
if renew then -- all of it is forgotten
  exists = false
  last = 0
  instant = 0
  total = 0
  base = 0
end
local kept, stale, forget = last, false, 0
if last > 0 and (instant > slot or oldest <= edge) then
--@ check
--@ read
--@ find
  if instant > slot then -- the clock stepped back: all since is now
    kept = find(date, slot, 0, last, 0, instant)
    last = kept + 1
    instant = slot
    stale = true
  end
  forget = find(date, edge, 0, last, edge - window, instant)
  if forget > 0 then base = sum(forget) end
  if forget + 1 < last then oldest = date(forget + 1) else oldest = instant end
  if broken or not base or not oldest then return {err = corrupt} end
end
local used, stored, recent, newest = total - base, total, instant, instant
if not (used >= 0) then return {err = corrupt} end -- it may be nan

--- take
local granted, before, blocking, blocked = times, used, 0, 0
local room = limit - used
if n * granted > room then
  granted = math.max((room - room % n) / n, 0)
end
used = used + granted * n
total = total + granted * n
if granted < times then
  -- The entry whose leaving makes room; a grant of this execution if the stored
  -- ones do not.
  local over, leaves = used + n - limit, slot
  if base + over <= stored then
    leaves = oldest
    if over > 1 then
--@ read
--@ find
      local entry = find(sum, base + over - 1, forget, last, base, stored) + 1
      if entry < last then leaves = date(entry) else leaves = recent end
      if broken or not leaves then return {err = corrupt} end
    end
  end
  blocking = 1
  blocked = leaves + window - now
end

--- store
--@ write
local ttl = (slot + window - now) / 1000
redis.call('PEXPIRE', key, ttl - ttl % 2 + 101)

--- answer
return {granted, blocking, blocked, slot - now, newest - now, before}

--- emit
out[size + 1] = granted
out[size + 2] = blocking
out[size + 3] = blocked
out[size + 4] = slot - now
out[size + 5] = newest - now
out[size + 6] = before
size = size + 6
if granted > 0 then newest = slot end
