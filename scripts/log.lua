-- Log of grants, for the sliding log and for the sliding window in sub-windows,
-- over a storage (listlog.lua, hashlog.lua) that holds numbered entries. An
-- entry is an instant and the permits granted up to it since the log began, so
-- that those of any span are one subtraction. Entry 0 is the last that every
-- rule has forgotten; it is there for its total.
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
--@ storage
local slot = now - now % grain + grain - 1
local stale, broken = false, false
local last, instant, total = open()
if not last then return {err = instant} end
local kept = last -- entries from 0 that stay as they are

-- The last entry between low and high that is not beyond the mark, in at most
-- two steps for each halving: first next to low, where a trimmed log has it,
-- then where evenly spaced entries would have it, then in the middle.
local function find(read, mark, low, high, lowest, highest)
  local guess = low + 1
  local halve = true
  while high - low > 1 do
    local value = read(guess)
    if not value then
      broken = true
      return low
    end
    if value <= mark then
      low = guess
      lowest = value
    else
      high = guess
      highest = value
    end
    halve = not halve
    if halve or highest <= lowest then
      guess = math.floor((low + high) / 2)
    else
      guess = low + math.floor((high - low) * (mark - lowest) / (highest - lowest))
      if guess <= low then guess = low + 1 end
      if guess >= high then guess = high - 1 end
    end
  end
  return low
end

if last > 0 and instant > slot then -- the clock stepped back: all since is now
  kept = find(date, slot, 0, last, date(0), instant)
  last = kept + 1
  instant = slot
  stale = true
end

local dead, base, used = {}, {}, {}
local from = 0
for r = rules, 1, -1 do -- a smaller window has forgotten more
  local edge = now - windows[r]
  if last == from or instant <= edge then
    from = last
  else
    from = find(date, edge, from, last, edge - windows[r], instant)
  end
  dead[r] = from
  if from == last then base[r] = total else base[r] = sum(from) end
  used[r] = total - (base[r] or 0)
  if not base[r] then broken = true end
end
if broken then return {err = corrupt} end
local stored, recent, newest = total, instant, instant

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
      if base[r] + over <= stored and stored > base[r] then
        local entry = find(sum, base[r] + over - 1, dead[r], last, base[r], stored) + 1
        if entry < last then leaves = date(entry) else leaves = recent end
        if not leaves then return {err = corrupt} end
      end
      if leaves + windows[r] - now > blocked then
        blocked = leaves + windows[r] - now
        blocking = r
      end
    end
  end
end

--- store
local forget = dead[rules]
if stale then cut(kept) end
if total > stored or stale then
  if recent == slot and last > 0 and not stale then
    amend(last, slot, total)
  else
    append(kept, slot, total)
  end
end
if forget > 0 then drop(forget) end
local ttl = (slot + windows[rules] - now) / 1000
redis.call('PEXPIRE', key, ttl - ttl % 2 + 3)

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
