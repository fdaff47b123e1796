-- A log of grants under one rule: the sliding window in sub-windows, and the
-- sliding log of a single rule. It does what log.lua does, without tables.
--
-- ARGV   [2] resolution, microseconds; [3] limit; [4] window, microseconds
-- Words  as in log.lua

--- config
local grain, limit, window = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local longest = window

--- load
local slot, edge = now - now % grain + grain - 1, now - window
--@ open
--@ renew
local kept, stale, forget = 0, false, 0
if exists and (instant > slot or oldest <= edge) then
--@ span
--@ read
--@ find
--@ rewind
  if oldest <= edge then -- more of it is forgotten, often by one entry
    local from, alive = find(date, edge, 1, last, instant, 2)
    forget = from
    base = sum(from)
    oldest = alive
  end
  if broken or not base or not oldest then return {err = corrupt} end
end
local used, stored, recent, newest = total - base, total, instant, instant
if not (used >= 0) then return {err = corrupt} end -- it may be nan

--- take
local granted, before, blocked = times, used, 0
local room = limit - used
if n * granted > room then
  granted = math.max((room - room % n) / n, 0)
end
used = used + granted * n
total = total + granted * n
if granted > 0 then newest = slot end
if granted < times then
  -- The entry whose leaving makes room; a grant of this execution if the stored
  -- ones do not.
  local over, leaves = used + n - limit, slot
  if base + over <= stored then
    leaves = oldest
    if over > 1 then
--@ span
--@ read
--@ find
      local entry = find(sum, base + over - 1, forget, last, stored, forget + over - 1) + 1
      if entry < last then leaves = date(entry) else leaves = recent end
      if broken or not leaves then return {err = corrupt} end
    end
  end
  blocked = leaves + window - now
end

--- store
local counts = used
--@ rebase
--@ left
--@ write
--@ expire
