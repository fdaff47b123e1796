-- Gives permits back that estimate.lua has taken. The blocks of an algorithm's script
-- replace the marked lines.
--
-- KEYS[1]  the key
-- ARGV     [1] "<permits>/<where>/<which>", the last two from the ticket; the rest is that
--          of the algorithm's script
-- Reply    the permits given back, rounded up
local key, n, times = KEYS[1], 1, 1
local call = redis.pcall
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- needs:
-- sets: rule grain rules limits windows longest corrupt
local rule, grain, rules = ARGV[2], ARGV[3] + 0, ARGV[4] + 0
-- These tables begin with room for four rules: to grow one costs a third of a call.
local limits, windows = {0, 0, 0, 0}, {0, 0, 0, 0}
for r = 1, rules do
  limits[r] = ARGV[3 + 2 * r] + 0
  windows[r] = ARGV[4 + 2 * r] + 0
end
local longest = windows[rules]
local corrupt = 'CORRUPT no state of a log in a list'
local back, where, which = string.match(ARGV[1], '^(%d+)/(%d+)/(%d+)$')
back = back + 0
-- Reads what this decision needs of the log. The blocks after it use:
--   present         the instant at which the call is decided: now, unless it has to be later
--   slot            last instant of the present slot, at which permits taken now are dated
--   total           permits taken since the log began
--   stored, recent  total and instant of the last entry before this execution; a clock that
--                   stepped back dates it at slot or earlier
--   newest          last instant at which a permit was taken, this execution's included
--   last            number of the last entry, nil unless it was needed
--   exists, renew   there is a log to go on with; there is one that has to be deleted
--   repair, kept    the clock stepped back: the entries after number kept have to go
--   forget          number of the entry that becomes entry 0
--   text            the rule that an allowed call writes; said is the stored one
--   gone, others    the instants at which the state is no longer needed, and at which
--                   nobody else needs it
-- needs: call corrupt grain key limits longest mark now rule rules spare windows
-- sets: alives base bases exists forget gone instant kept last left newest others present recent renew repair said slack slot stored text total

-- <open>
-- The last entry (instant, total), the rule (said), the total of entry 0 (base) and the
-- instant of entry 1 (oldest).
-- needs: call key rule corrupt
-- sets: exists said instant total base oldest
local exists, said, instant, total, base, oldest = false, rule, 0, 0, 0, 0
local tail = call('LRANGE', key, '-2', '-1')
if tail.err then return tail end
if tail[1] then
  exists = true
  instant = tonumber(tail[1])
  total = tonumber(tail[2])
  local head = call('LRANGE', key, '0', '2')
  said = head[1]
  base = tonumber(head[2])
  oldest = tonumber(head[3])
  -- A comparison with NaN is false.
  if not (instant and total and base and oldest and oldest <= instant and base <= total and total < 2 ^ 53) then
    return {err = corrupt}
  end
end
-- </open>

local present, slot = now, now - now % grain + grain - 1
local text, held, gone, others, newest, slack = rule, longest, instant + longest, 0, instant, spare
local last
local renew, kept, repair = false, 0, false
-- Others have used the key, or the clock is behind.
if said ~= rule or instant > slot then
  -- <writer>
  -- The rule that the state was written by, as far as it is another one.
  -- needs: rule grain mark longest said corrupt
  -- sets: theirs coarse signed more
  local theirs, coarse, signed, more = longest, grain, mark, ''
  if said ~= rule then
    theirs, coarse, signed, more = string.match(said or '', '^([1-9]%d*)/([1-9]%d*)(@?)(.*)$')
    if not theirs then return {err = corrupt} end
    theirs = theirs + 0
    coarse = coarse + 0
  end
  -- </writer>
  -- <rewind>
  -- </rewind>
  -- <others>
  -- What others need is kept. The last entry is never moved back: permits are dated at its
  -- instant until that has come. If its slot has not even begun, a caller's clock is ahead
  -- of this one or this one is behind, and the call is decided as at the beginning of that
  -- slot. The rule goes on to say when the last entry's slot began, and by whose clock.
  -- needs: coarse gone grain held instant longest mark more newest now others present signed slack slot text theirs
  -- sets: present slot text held gone others newest slack
  if instant - coarse >= now and (mark == '@' or signed == '@') then
    present = instant - coarse + 1
    slot = present - present % grain + grain - 1
  end
  local behind = present > now
  if instant > slot then
    slot = instant
    behind = signed == '@'
    text = string.format('%d/%d%s', longest, coarse, signed)
  elseif behind then
    text = string.format('%d/%d@', longest, slot - present + 1)
  end
  if behind then slack = math.max(slack, 1000) end
  gone = instant + theirs
  local own, beside = gone, ''
  for width, needed in string.gmatch(more, ' (%d+)/(%d+)') do
    local leaves = math.min(needed + 0, instant + width)
    gone = math.max(gone, leaves)
    if width + 0 > longest and leaves > present then
      held = math.max(held, width + 0)
      others = math.max(others, leaves)
      beside = string.format('%s %s/%d', beside, width, leaves)
    end
  end
  if theirs > longest and own > math.max(present, others) then
    held = math.max(held, theirs)
    others = own
    beside = string.format(' %d/%d%s', theirs, own, beside)
  end
  text = text .. beside
  newest = math.min(instant, gone - longest) -- the full limit is back when the state is gone
  -- </others>
end
if exists and gone <= present then -- the state is no longer needed
  renew = true
  exists = false
  said = text
  instant = 0
  total = 0
  base = 0
  newest = 0
end
-- Unless an entry has left the smallest window, the numbers of entries are not needed.
if exists and not last and oldest <= present - windows[1] then
  local length = call('LLEN', key)
  if length < 4 or length % 2 == 1 then return {err = corrupt} end
  last = length / 2 - 1
end

-- For each rule: the last entry that has left its window (left), the total up to that
-- entry (bases), and the instant of the entry after it (alives). The smaller the
-- window, the more entries have left it. What others need comes before the longest rule.
local left, bases, alives = {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}
local from, upto, alive = 0, base, oldest
local most, forget = rules
if held > longest then
  most = rules + 1
  windows[most] = held
end
for r = most, 1, -1 do
  local edge = present - windows[r]
  if instant <= edge then -- all entries have left this window
    from = last or 0
    upto = total
  elseif alive <= edge then
    -- Usually just one more entry has left the longest window. For the other rules the
    -- guess is that all permits of the rule are taken, one in each entry: then as many
    -- entries as its limit are in its window, or one fewer just before a call is allowed.
    local guess, width = from + 1, 2
    if r < rules then
      guess = last - limits[r]
      width = 4
      if guess <= from then
        guess = from + 1 + math.floor((last - from - 1) * (edge - alive) / (instant - alive))
      end
    end
    -- <search>
    -- Finds the last entry whose instant is not after the edge: its number (from), its
    -- total (upto), and the instant of the entry after it (alive). The search starts
    -- after the entry from, whose next entry is at alive. Each reading of two or three
    -- neighbours (width 2 or 4) shows where to go on: first in proportion, then, if
    -- that takes too long, by halves.
    -- needs: call key edge instant last corrupt from guess upto alive width
    -- sets: alive from last upto
    local low, lowAt, high, highAt, readings = from + 1, alive, last, instant, 0
    while true do
      local near = call('LRANGE', key, 2 * guess, 2 * guess + width)
      local at, sum = tonumber(near[1]), near[2]
      alive = instant
      if near[3] and guess + 1 ~= last then alive = tonumber(near[3]) end
      if near[5] and alive and alive <= edge and guess + 1 ~= last then -- it is the next entry
        guess = guess + 1
        at = alive
        sum = near[4]
        alive = instant
        if guess + 1 ~= last then alive = tonumber(near[5]) end
      end
      upto = tonumber(sum)
      if not (at and upto and alive) then return {err = corrupt} end
      if at <= edge and alive > edge then break end
      if not last then
        local length = call('LLEN', key)
        if length < 4 or length % 2 == 1 then return {err = corrupt} end
        last = length / 2 - 1
        high = last
      end
      if at > edge then
        high = guess
        highAt = at
      else
        low = guess + 1
        lowAt = alive
      end
      if low >= high then return {err = corrupt} end -- the entries are not in order
      readings = readings + 1
      local share = 1 / 2
      if readings < 4 then share = (edge - lowAt) / (highAt - lowAt) end
      guess = low + math.floor((high - low) * share)
    end
    from = guess
    -- </search>
  end
  if not forget then
    forget = from
    base = upto
  end
  left[r] = from
  bases[r] = upto
  alives[r] = alive
  if not (total >= upto) then return {err = corrupt} end -- "not", because it may be NaN
end
if gone >= 2 ^ 53 then return {err = corrupt} end
local stored, recent = total, instant
-- The totals from the ticket's entry on are rewritten, and an entry without permits goes.
-- Only the last entry of a caller's clock stays as long as the clocks may be apart: without
-- its instant, a clock that is behind would find the windows of that time unused again.
-- If 512 entries or more came after the ticket's, nothing is given back: each takes 1 to 2 µs.
-- needs: key call present exists said rule instant gone slack corrupt back where
-- sets: given
local given = 0
if exists then
  local length = call('LLEN', key)
  if length < 4 or length % 2 == 1 then return {err = corrupt} end
  local entries, count, latest = length / 2 - 1, 8, nil
  repeat -- the last entries, and the total before them
    count = math.min(count * 4, entries)
    latest = call('LRANGE', key, -2 * count - 1, '-1')
  until count == entries or count >= 512 or not latest[2] or tonumber(latest[2]) <= where + 0
  local found = 2
  while latest[found] and tonumber(latest[found]) < where + 0 do
    found = found + 2
  end
  if latest[found] and tonumber(latest[found]) == where + 0 then
    local own = latest[found + 1] - latest[found - 1]
    given = math.min(back, own)
    if given == 0 then return {0} end
    local final = found == #latest - 1
    local stays = final and given == own and string.find(said, '@', 1, true)
    local rest = {} -- behind the entry before the ticket's
    for i = found + 1, #latest, 2 do
      if i > found + 1 or given < own or stays then
        rest[#rest + 1] = latest[i - 1]
        rest[#rest + 1] = string.format('%d', latest[i] - given)
      end
    end
    if stays then redis.call('LSET', key, '0', said .. '!') end
    if #rest == 0 and entries == 1 then
      redis.call('UNLINK', key)
    elseif #rest == 2 and final then
      redis.call('LSET', key, '-1', rest[2])
    else
      -- If the server is out of memory, this fails, before anything has changed.
      redis.call('LSET', key, '-1', latest[#latest])
      redis.call('LTRIM', key, '0', found - #latest - 2)
      for i = 1, #rest, 1000 do
        redis.call('RPUSH', key, unpack(rest, i, math.min(i + 999, #rest)))
      end
    end
    -- The last permit is an earlier one now, or there is none. An instant that stays before
    -- other permits keeps its TTL: other rules count from it when the state ends.
    local alone = given == own and (said == rule and entries == 1 or said == rule .. '!' and entries == 2)
    if alone or final and given == own and said == rule and not stays then
      local ttl = 0
      if not alone then ttl = math.max(gone - instant + latest[found - 2] - present, 0) / 1000 end
      redis.call('PEXPIRE', key, ttl - ttl % 2 + 901 + slack)
    end
  end
end
return {given}
