-- Looks at a key for one request for one permit: takes nothing and writes nothing.
-- KEYS and ARGV are those of the algorithm's script, whose blocks replace the marked
-- lines. The reply is the words of a run of one request, before it has taken anything.
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall
local budget = 0 -- of an execution for many requests
-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- <config>
-- needs:
-- sets: rule grain limit window longest corrupt
local rule, grain, limit, window = ARGV[2], ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local longest = window
local corrupt = 'CORRUPT no state of a log in a list'
local out, size = {}, 0
-- <load>
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
--   era             0, or the clock has stepped back: instants up to this one are used again
--   gone, others    the instants at which the state is no longer needed, and at which
--                   nobody else needs it
--   left, under     the last entry that has left the window: its number, its total
--   alive           the instant of the entry after it
-- needs: budget call corrupt grain key longest mark now rule spare window
-- sets: alive base budget era exists forget gone instant kept last left newest others present recent renew repair said slack slot stored text total under used

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
local era = 0
local renew, kept, repair, forget = false, 0, false, 0
-- Others have used the key, or the clock is behind.
if said ~= rule or instant > slot then
  -- <writer>
  -- The rule that the state was written by, as far as it is another one; what it says of slices (lent, series),
  -- and of a clock that stepped back (era).
  -- needs: era rule grain mark longest said corrupt
  -- sets: theirs coarse signed more lent series era
  local theirs, coarse, signed, more, lent, series = longest, grain, mark, '', nil, nil
  if said ~= rule then
    theirs, coarse, signed, more = string.match(said or '', '^([1-9]%d*)/([1-9]%d*)(@?)(.*)$')
    if not theirs then return {err = corrupt} end
    theirs = theirs + 0
    coarse = coarse + 0
    lent, series = string.match(more, '~(%d+)/(%d+)')
    era = tonumber(string.match(series or '', '^0(%d+)$') or 0)
  end
  -- </writer>
  -- <rewind>
  -- The server's clock stepped back before the slot of the last entry: permits taken after
  -- that slot's present one count as taken in it. If slices may be out, they count as taken a slot
  -- from now, beyond which none lasts. Instants are used again now, so an era begins: see giveback.
  -- needs: budget call coarse corrupt era instant kept key last lent mark now oldest repair said series signed
  -- sets: budget era instant kept last lent oldest repair said series
  if instant - coarse >= now and mark == '' and signed == '' then
    local length = call('LLEN', key)
    if length < 4 or length % 2 == 1 then return {err = corrupt} end
    last = length / 2 - 1
    local slices = lent and lent + 0 ~= era
    era = math.max(instant, era) + 1
    instant = now - now % coarse + coarse - 1
    if slices then instant = now + coarse - 1 end
    lent = string.format('%d', slices and instant or era)
    series = string.format('0%d', era)
    said = string.gsub(said, '~.*', '') .. '~' .. lent .. '/' .. series
    if oldest < instant then
      kept = 1
      local high = last
      while high - kept > 1 do
        local middle = math.floor((kept + high) / 2)
        local at = tonumber(call('LRANGE', key, 2 * middle, 2 * middle)[1])
        budget = budget - 8
        if not at then return {err = corrupt} end
        if at < instant then kept = middle else high = middle end
      end
    else
      oldest = instant
    end
    last = kept + 1
    repair = true
  end
  -- </rewind>
  -- <others>
  -- What others need is kept. The last entry is never moved back: permits are dated at its
  -- instant until that has come. If its slot has not even begun, a caller's clock is ahead
  -- of this one or this one is behind, and the call is decided as at the beginning of that
  -- slot. The stored rule still records when that slot began, and whose clock dated it.
  -- needs: coarse era gone grain held instant lent longest mark more newest now others present series signed slack slot text theirs
  -- sets: era present slot text held gone others newest slack
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
  if era > 0 and era + held <= present then era = 0 end
  if lent and lent + held > present then -- see slice
    beside = beside .. '~' .. lent .. '/' .. series
  elseif era > 0 then
    beside = beside .. string.format('~%d/0%d', era, era)
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
  local edge, from, upto = present - held, 0, base
  while true do -- first under the longest window that anybody needs, then under this one
    if instant <= edge then
      upto = total
    elseif alive <= edge then
      local guess, width = from + 1, 2
      -- <search>
      -- Finds the last entry whose instant is not after the edge: its number (from), its
      -- total (upto), and the instant of the entry after it (alive). The search starts
      -- after the entry from, whose next entry is at alive. Each reading of two or three
      -- neighbours (width 2 or 4) shows where to go on: first in proportion, then, if
      -- that takes too long, by halves.
      -- needs: alive budget call corrupt edge from guess instant key last upto width
      -- sets: alive budget from last upto
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
        if readings < 4 then share = (edge - lowAt) / (highAt - lowAt) else budget = budget - 8 end
        guess = low + math.floor((high - low) * share)
      end
      from = guess
      -- </search>
    end
    if edge == present - held then
      forget = from
      base = upto
    end
    if edge == present - window then break end
    edge = present - window
  end
  left = from
  under = upto
end
local used, stored, recent = total - under, total, instant
if not (used >= 0 and gone < 2 ^ 53) then return {err = corrupt} end -- "not", because it may be NaN
-- <fit>
-- needs: n times limit used
-- sets: allowed before room
local allowed, before = times, used
local room = limit - used
if n * allowed > room then
  allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
end
-- <seek>
-- Computes when the entry leaves the window that makes room. It is an entry of this
-- execution if the stored ones are not enough.
-- needs: alive allowed budget call corrupt gone key last left limit n now recent slot stored times under used window
-- sets: budget wait
local wait = 0
if allowed < times then
  local over, leaves = used + (allowed + 1) * n - limit, slot -- so many permits have to leave
  if under + over <= stored then
    leaves = alive
    if over > 1 then
      local below, belowSum, goal = left, under, under + over
      -- <reach>
      -- Finds the instant (leaves) of the first entry whose total reaches the goal. It
      -- comes after the entry below, whose total is belowSum.
      -- needs: below belowSum budget call corrupt goal key last leaves recent stored
      -- sets: budget leaves
      local above = last
      if not above then
        local length = call('LLEN', key)
        if length < 4 or length % 2 == 1 then return {err = corrupt} end
        above = length / 2 - 1
      end
      local final, aboveSum, readings = above, stored, 0
      local guess = math.min(below + goal - belowSum - 1, above - 1) -- right if entries have one permit each
      while true do
        local pair = call('LRANGE', key, 2 * guess + 1, 2 * guess + 3)
        local sum = tonumber(pair[1])
        local after = stored
        leaves = recent
        if guess + 1 < final then
          leaves = tonumber(pair[2])
          after = tonumber(pair[3])
        end
        if not (sum and after and leaves) then return {err = corrupt} end
        if sum >= goal then
          above = guess
          aboveSum = sum
        elseif after < goal then
          below = guess + 1
          belowSum = after
        else
          break
        end
        if below >= above then return {err = corrupt} end -- the entries are not in order
        readings = readings + 1
        local share = 1 / 2
        if readings < 4 then share = (goal - 1 - belowSum) / (aboveSum - belowSum) else budget = budget - 8 end
        guess = below + math.floor((above - below) * share)
      end
      -- </reach>
    end
  end
  wait = leaves + window
  if allowed == 0 and wait > gone then wait = gone end
  wait = wait - now
end
-- <words>
-- needs: out size now newest allowed before wait
-- sets: size
out[size + 1] = allowed
out[size + 2] = newest - now
out[size + 3] = wait
out[size + 4] = before
size = size + 4
return out
