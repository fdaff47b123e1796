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
-- needs: call
-- sets: rule grain limit window longest corrupt bounds
local rule, grain, limit, window = ARGV[2], ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local longest = window
local corrupt = 'CORRUPT no state of a log in a hash'
-- The number of entry 0, and that of the last entry counted from there, which few
-- decisions need; nil if they cannot be right.
local function bounds(log)
  local numbers = call('HMGET', log, 'first', 'last')
  local first, final = tonumber(numbers[1]), tonumber(numbers[2])
  if first and final and first >= 0 and final > first and final < 2 ^ 53 then
    return first, final - first
  end
end
local back, where, which = string.match(ARGV[1], '^(%d+)/(%d+)/(%d+)$')
back = back + 0
-- Reads what this decision needs of the log. The blocks after it use:
--   present         the instant at which the call is decided: now, unless it has to be later
--   slot            last instant of the present slot, at which permits taken now are dated
--   total, used     permits taken since the log began; those that count now
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
--   left, under     the last entry that has left the window: its number, its total
--   alive           the instant of the entry after it
-- needs: bounds call corrupt grain key longest mark now rule spare window
-- sets: alive base exists first forget gone instant last left newest oldest others present recent renew repair said slack slot stored text total under used

-- <open>
-- The rule (said), the last entry (instant, total), the total of entry 0 (base) and the
-- instant of entry 1 (oldest).
-- needs: call key rule corrupt
-- sets: exists said instant total base oldest
local exists, said, instant, total, base, oldest = false, rule, 0, 0, 0, 0
local fields = call('HMGET', key, 'rule', 'instant', 'total', 'base', 'oldest')
if fields.err then return fields end
if fields[2] or fields[3] then
  exists = true
  said = fields[1]
  instant = tonumber(fields[2])
  total = tonumber(fields[3])
  base = tonumber(fields[4])
  oldest = tonumber(fields[5])
  -- A comparison with NaN is false.
  if not (instant and total and base and oldest and oldest <= instant and base <= total and total < 2 ^ 53) then
    return {err = corrupt}
  end
end
-- </open>

local present, slot = now, now - now % grain + grain - 1
local text, held, gone, others, newest, slack = rule, longest, instant + longest, 0, instant, spare
local first, last -- see bounds
local renew, kept, repair, forget = false, 0, false, 0
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
local left, under, alive = 0, base, oldest
if exists and alive <= present - window then -- more entries have left the window, often just one
  if not last then
    first, last = bounds(key)
    if not last then return {err = corrupt} end
  end
  local edge, from, upto = present - held, 0, base
  while true do -- first under the longest window that anybody needs, then under this one
    if instant <= edge then
      from = last
      upto = total
    elseif alive <= edge then
      local guess = from + 1
      -- <search>
      -- Finds the last entry whose instant is not after the edge: its number (from), its
      -- total (upto), and the instant of the entry after it (alive). The search starts
      -- after the entry from, whose next entry is at alive. Each reading of two neighbours
      -- shows where to go on: first in proportion, then, if that takes too long, by halves.
      -- needs: call key edge instant last corrupt from guess upto alive first
      -- sets: from upto alive
      local low, lowAt, high, highAt, readings = from + 1, alive, last, instant, 0
      while true do
        local number = first + guess
        local pair = call('HMGET', key, string.format('%d', number), string.format('%d', number + 1))
        local at, sum = string.match(pair[1] or '', '^(%d+)/(%d+)$')
        at = tonumber(at)
        upto = tonumber(sum)
        alive = instant
        if guess + 1 < last then alive = tonumber((string.match(pair[2] or '', '^(%d+)/'))) end
        if not (at and upto and alive) then return {err = corrupt} end
        if at > edge then
          high = guess
          highAt = at
        elseif alive <= edge then
          low = guess + 1
          lowAt = alive
        else
          break
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
    if edge == present - held then
      forget = from
      base = upto
      oldest = alive
    end
    if edge == present - window then break end
    edge = present - window
  end
  left = from
  under = upto
end
local used, stored, recent = total - under, total, instant
if not (used >= 0 and gone < 2 ^ 53) then return {err = corrupt} end -- "not", because it may be NaN
-- The totals from the ticket's entry on are rewritten, and an entry without permits goes.
-- Only the last entry of a caller's clock stays as long as the clocks may be apart: without
-- its instant, a clock that is behind would find the windows of that time unused again.
-- If 512 entries or more came after the ticket's, nothing is given back: each takes 1 to 2 µs.
-- needs: key call bounds present exists said rule gone slack corrupt back where
-- sets: given
local given = 0
if exists then
  local zero, number = bounds(key)
  local ends = call('HMGET', key, 'instant', 'total', 'base')
  local at, sum, read = ends[1] + 0, ends[2] + 0, 0
  if not number then return {err = corrupt} end
  local place, ats, sums, before, below = number, {}, {}, 0, ends[3] + 0
  -- The entries from the last one back to the ticket's, and the one before that.
  while at and at > where + 0 and place > 1 and read < 511 do
    ats[place] = at
    sums[place] = sum
    place = place - 1
    read = read + 1
    local entry = call('HMGET', key, string.format('%d', zero + place))[1]
    at, sum = string.match(entry or '', '^(%d+)/(%d+)$')
    at = tonumber(at)
    sum = tonumber(sum)
  end
  if at == where + 0 then
    if place > 1 then
      local entry = call('HMGET', key, string.format('%d', zero + place - 1))[1]
      before, below = string.match(entry or '', '^(%d+)/(%d+)$')
      before = tonumber(before)
      below = tonumber(below)
      if not below then return {err = corrupt} end
    end
    ats[place] = at
    sums[place] = sum
    local own = sum - below
    given = math.min(back, own)
    if given == 0 then return {0} end
    local stays = place == number and given == own and string.find(said, '@', 1, true)
    local gap = 0 -- the ticket's entry goes
    if given == own and not stays then gap = 1 end
    if stays then redis.call('HSET', key, 'rule', said .. '!') end
    if gap == 1 and number == 1 then
      redis.call('UNLINK', key)
    else
      local final = number - gap
      local moved = {}
      for i = place, final do
        if i < final then
          moved[#moved + 1] = string.format('%d', zero + i)
          moved[#moved + 1] = string.format('%d/%d', ats[i + gap], sums[i + gap] - given)
        end
      end
      local lastAt, lastSum = ats[number], sums[number] - given
      if place > final then -- the last entry goes
        lastAt = before
        lastSum = below
      end
      redis.call('HSET', key, 'instant', string.format('%d', lastAt), 'total', string.format('%d', lastSum),
        'last', string.format('%d', zero + final))
      if gap == 1 and place == 1 then redis.call('HSET', key, 'oldest', string.format('%d', ats[2])) end
      for i = 1, #moved, 1000 do
        redis.call('HSET', key, unpack(moved, i, math.min(i + 999, #moved)))
      end
      if gap == 1 then redis.call('HDEL', key, string.format('%d', zero + final)) end
      -- The last permit is an earlier one now, or there is none. An instant that stays before
      -- other permits keeps its TTL: other rules count from it when the state ends.
      local alone = given == own and (said == rule and number == 1 or said == rule .. '!' and number == 2)
      if alone or place == number and given == own and said == rule and not stays then
        local ttl = 0
        if not alone then ttl = math.max(gone - at + before - present, 0) / 1000 end
        redis.call('PEXPIRE', key, ttl - ttl % 2 + 901 + slack)
      end
    end
  end
end
return {given}
