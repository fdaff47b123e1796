-- A log of grants under several rules, over a storage (listlog.lua) that holds
-- numbered entries. An entry is an instant and the permits granted up to it
-- since the log began, so that those of any span are one subtraction. Entry 0 is
-- the last that every rule has forgotten; it is there for its total.
--
-- ARGV   [2] resolution, microseconds: grants of one slot share an entry, dated
--        at the last instant of the slot; [3] number of rules; then limit and
--        window (microseconds) of each, from the smallest window up
-- Words  granted, rule that blocks the rest longest (from 1, or 0), microseconds
--        until it does not, microseconds from now to the last instant of this
--        slot, and to the last entry before the run, then for each rule the
--        permits used before the run

--- config
local grain, rules = ARGV[2] + 0, ARGV[3] + 0
local limits, windows = {}, {}
for r = 1, rules do
  limits[r] = ARGV[2 + 2 * r] + 0
  windows[r] = ARGV[3 + 2 * r] + 0
end

--- load
local slot = now - now % grain + grain - 1
--@ open
local renew = last > 0 and instant <= now - windows[rules]
if renew then -- all of it is forgotten
  exists = false
  last = 0
  instant = 0
  total = 0
  base = 0
end
local kept, stale = last, false
--@ read
--@ find
if last > 0 and instant > slot then -- the clock stepped back: all since is now
  kept = find(date, slot, 0, last, 0, instant)
  last = kept + 1
  instant = slot
  stale = true
end
local dead, bases, used = {}, {}, {}
local from = 0
for r = rules, 1, -1 do -- a smaller window has forgotten more
  local edge = now - windows[r]
  if last == from or instant <= edge then
    from = last
    bases[r] = total
  else
    from = find(date, edge, from, last, edge - windows[r], instant)
    if from == 0 then bases[r] = base else bases[r] = sum(from) end
  end
  dead[r] = from
  if broken or not bases[r] then return {err = corrupt} end
  used[r] = total - bases[r]
  if not (used[r] >= 0) then return {err = corrupt} end -- it may be nan
end
local forget, stored, recent, newest = dead[rules], total, instant, instant

--- take
local granted, before, blocking, blocked = times, {}, 0, 0
for r = 1, rules do
  before[r] = used[r]
  local room = limits[r] - used[r]
  if n * granted > room then
    granted = math.max((room - room % n) / n, 0)
  end
end
for r = 1, rules do
  used[r] = used[r] + granted * n
end
total = total + granted * n
if granted < times then
  for r = 1, rules do
    local over = used[r] + n - limits[r]
    if over > 0 then
      -- The entry whose leaving makes room; a grant of this execution if the
      -- stored ones do not.
      local leaves = slot
      if bases[r] + over <= stored then
        local entry = find(sum, bases[r] + over - 1, dead[r], last, bases[r], stored) + 1
        if entry < last then leaves = date(entry) else leaves = recent end
        if broken or not leaves then return {err = corrupt} end
      end
      if leaves + windows[r] - now > blocked then
        blocked = leaves + windows[r] - now
        blocking = r
      end
    end
  end
end

--- store
--@ write
local ttl = (slot + windows[rules] - now) / 1000
redis.call('PEXPIRE', key, ttl - ttl % 2 + 101)

--- answer
local out, size = {}, 0
--@ emit
return out

--- emit
out[size + 1] = granted
out[size + 2] = blocking
out[size + 3] = blocked
out[size + 4] = slot - now
out[size + 5] = newest - now
size = size + 5
for r = 1, rules do
  out[size + r] = before[r]
end
size = size + rules
if granted > 0 then newest = slot end
