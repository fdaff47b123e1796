-- A log of grants under several rules, over a storage (listlog.lua) that holds
-- numbered entries. An entry is an instant and the permits granted up to it
-- since the log began, so that those of any span are one subtraction. Entry 0 is
-- the last that every rule has forgotten; it is there for its total.
--
-- ARGV   [2] resolution, microseconds: grants of one slot share an entry, dated
--        at the last instant of the slot; [3] number of rules; then limit and
--        window (microseconds) of each, from the smallest window up
-- Words  granted, microseconds from now to the last instant with a grant, this
--        run's included, microseconds until the rest is not blocked, then for
--        each rule the permits used before the run, and where there are several
--        the rule that blocks the rest longest (from 1, or 0)

--- config
local grain, rules = ARGV[2] + 0, ARGV[3] + 0
local limits, windows = {}, {}
for r = 1, rules do
  limits[r] = ARGV[2 + 2 * r] + 0
  windows[r] = ARGV[3 + 2 * r] + 0
end
local longest = windows[rules]

--- load
local slot = now - now % grain + grain - 1
--@ open
--@ renew
local kept, stale = 0, false
-- For each rule the last entry that it has forgotten, the total up to there, and
-- the instant of the next.
local dead, bases, alive = {}, {}, {}
if exists and (instant > slot or oldest <= now - windows[1]) then
--@ span
--@ read
--@ find
--@ rewind
  local from, upto, next = 0, base, oldest
  for r = rules, 1, -1 do -- a smaller window has forgotten more
    local edge = now - windows[r]
    if instant <= edge then
      from = last
      upto = total
    elseif next <= edge then
      local guess = 2 -- the longest, which is trimmed, has often forgotten one more
      if r < rules then
        guess = last - limits[r] -- where it is if the rule is used up
        if guess > from + 1 then fetch(guess - 1) end
      end
      local found, value = find(date, edge, from + 1, last, instant, guess)
      from = found
      upto = sum(found)
      next = value
    end
    if broken or not upto or not next then return {err = corrupt} end
    dead[r] = from
    bases[r] = upto
    alive[r] = next
  end
else
  for r = 1, rules do
    dead[r] = 0
    bases[r] = base
    alive[r] = oldest
  end
end
local used = {}
for r = 1, rules do
  used[r] = total - bases[r]
  if not (used[r] >= 0) then return {err = corrupt} end -- it may be nan
end
local forget, stored, recent, newest = dead[rules], total, instant, instant

--- take
local granted, before, blocked, blocking = times, {}, 0, 0
for r = 1, rules do
  before[r] = used[r]
  local room = limits[r] - used[r]
  if n * granted > room then
    granted = math.max((room - room % n) / n, 0)
  end
end
if granted > 0 then
  for r = 1, rules do
    used[r] = used[r] + granted * n
  end
  total = total + granted * n
  newest = slot
end
if granted < times then
  for r = 1, rules do
    local over = used[r] + n - limits[r]
    if over > 0 then
      -- The entry whose leaving makes room; a grant of this execution if the
      -- stored ones do not.
      local leaves = slot
      if bases[r] + over <= stored then
        leaves = alive[r]
        if over > 1 then
--@ span
--@ read
--@ find
          local entry = find(sum, bases[r] + over - 1, dead[r], last, stored, dead[r] + over - 1) + 1
          if entry < last then leaves = date(entry) else leaves = recent end
          if broken or not leaves then return {err = corrupt} end
        end
      end
      if leaves + windows[r] - now > blocked then
        blocked = leaves + windows[r] - now
        blocking = r
      end
    end
  end
end

--- store
local counts = used[rules]
--@ rebase
--@ left
--@ write
--@ expire

--- answer
local out, size = {}, 0
--@ emit
return out

--- emit
out[size + 1] = granted
out[size + 2] = newest - now
out[size + 3] = blocked
for r = 1, rules do
  out[size + 3 + r] = before[r]
end
out[size + 4 + rules] = blocking
size = size + 4 + rules
