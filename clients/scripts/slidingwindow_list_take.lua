-- A log under one rule, in a list: the sliding window in sub-windows, with the
-- storage List, and the sliding log of a single rule.
--
-- An entry of the log is an instant and the permits taken up to it since the log
-- began, so that one subtraction gives the permits of any span. Entry 0 is the last
-- entry that has left the window; only its total is needed.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] the limiter's rule, see State; [3] resolution, microseconds:
--          permits of one slot share an entry, dated at the last instant of the slot;
--          [4] limit; [5] window, microseconds; last spare and the caller's clock, if
--          that decides (callersclock.lua)
-- State    rule, total, instant, total, instant, total, …: entry i is at 2i and 2i + 1,
--          and takes about 14 bytes in a node of the list. The rule stands in place of
--          the instant of entry 0
-- Rule     "<longest window>/<resolution>", and "@" if a caller's clock wrote the last
--          entry. " <window>/<instant>" follows for every longer window of another
--          limiter that uses the key: its entries are kept until that instant, when
--          the last permit that it took leaves its window. Then "~<instant>/<id>", if slices were
--          taken: until when they may be spent, and of which of them permits come back
--          (slice); or "~<era>/0<era>": the server's clock stepped back, instants before that
--          number are used again, and tickets of these have it (rewind, ticket). With slices
--          it is "~<instant>/0<era>". "!" at the end: all permits of the last entry were given
--          back. The limiter's own rule is in ARGV, so that one comparison says that nobody
--          else uses the key
-- Reply    the words of a run
-- Words    requests allowed; microseconds from now to the last instant at which a
--          permit was taken, this run's included; microseconds until the first denied
--          request fits; permits used before the run
local key, n, times = KEYS[1], ARGV[1] + 0, 1
local call = redis.pcall
local budget = 0 -- of an execution for many requests, see many.lua

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

-- <config>
-- needs:
-- sets: rule grain limit window longest corrupt
local rule, grain, limit, window = ARGV[2], ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local longest = window
local corrupt = 'CORRUPT no state of a log in a list'
-- </config>

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
-- </load>

-- <fit>
-- needs: n times limit used
-- sets: allowed before room
local allowed, before = times, used
local room = limit - used
if n * allowed > room then
  allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
end
-- </fit>

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
-- </seek>

-- <take>
-- needs: n longest slot used total allowed others newest gone
-- sets: used total newest gone
used = used + allowed * n
total = total + allowed * n
if allowed > 0 then
  newest = slot
  gone = slot + longest
  if others > gone then gone = others end
end
-- </take>

if allowed > 0 or repair then
  -- <store>
  -- needs: base budget exists forget gone instant kept key present recent renew repair said slack slot stored text total
  -- sets: budget exists forget renew total
  if repair then
    redis.call('LSET', key, '0', said)
    redis.call('LTRIM', key, '0', 2 * kept + 1)
    redis.call('RPUSH', key, string.format('%d', instant), string.format('%d', stored))
  end
  local old = -1 -- the TTL
  if exists then old = redis.call('PTTL', key) end
  if total > stored then -- a call is allowed
    -- Totals only grow. Before they are too large to be exact, the permits that count under
    -- the longest rule begin a new log, as if taken now: they count for longer than they
    -- should, never for less.
    if total > 2 ^ 52 then
      renew = true
      exists = false
      total = math.min(total - base, 2 ^ 51)
    end
    local sum = string.format('%d', total)
    if renew then redis.call('UNLINK', key) end
    if not exists then
      redis.call('RPUSH', key, text, '0', string.format('%d', slot), sum) -- entries 0 and 1
    else
      if recent == slot then
        redis.call('LSET', key, '-1', sum) -- the last entry is of this slot
      elseif text ~= said and string.sub(said, -1) == '!' then -- it has no permits
        redis.call('LSET', key, '-2', string.format('%d', slot))
        redis.call('LSET', key, '-1', sum)
      else
        redis.call('RPUSH', key, string.format('%d', slot), sum)
      end
      if forget > 1000 then
        forget = math.min(forget, 200000) -- the rest is for the next calls
        budget = budget - forget / 500
      end
      if forget > 0 then redis.call('LTRIM', key, 2 * forget, '-1') end
      if forget > 0 or text ~= said then redis.call('LSET', key, '0', text) end
    end
  end
  -- The TTL is set to 0.9 s more than needed, so that a key in use needs it only about once
  -- a second. It is odd, because Redis 7.2.0 writes 100000000 as 1e+8.
  local ttl = (gone - present) / 1000
  ttl = ttl - ttl % 2 + slack
  if old < ttl + 50 or old > ttl + 950 then redis.call('PEXPIRE', key, ttl + 901) end
  -- </store>
else
  -- <expire>
  -- A denial repairs a lost TTL, and changes nothing else.
  -- needs: key present exists gone slack
  -- sets:
  if exists and redis.call('PTTL', key) == -1 then
    local ttl = (gone - present) / 1000
    redis.call('PEXPIRE', key, ttl - ttl % 2 + 901 + slack)
  end
  -- </expire>
end

-- <answer>
-- needs: now newest allowed before wait
-- sets:
return {allowed, newest - now, wait, before}
-- </answer>

--[[ In place of the answer when a run of requests is decided:
-- <words>
-- needs: out size now newest allowed before wait
-- sets: size
out[size + 1] = allowed
out[size + 2] = newest - now
out[size + 3] = wait
out[size + 4] = before
size = size + 4
-- </words>
-- <charge>
-- After fit: as many requests as the debt has room for.
-- needs: allowed n room times used
-- sets: allowed
room = 4e12 - used
allowed = times
if n * allowed > room then allowed = math.max((room - room % n) / n, 0) end
-- </charge>

-- <lease>
-- A slice: how many of the requests it gets (times), and how long it lasts (long).
-- needs: least limit long present slot times used
-- sets: long times
local fits = math.max(limit - used, 0)
-- <span>
-- How long a slice lasts: until the instant at which its permits are dated, at most.
-- needs: fits least long present slot times
-- sets: long
times = math.min(times, math.max(math.min(fits, math.max(least, 1)), math.floor(fits / 4)))
long = math.min(long, slot - present)
if long < 1 then -- to be used at once
  times = math.min(times, math.max(least, 1))
  long = 0
end
-- </span>
-- </lease>

-- <slice>
-- The state says until when slices may be spent, and of which of them permits may come back: of
-- those that have its id. That of the first slice is the id until the clock steps back (rewind), and then the era.
-- needs: allowed era id long out size slot text
-- sets: text
out[size + 1] = slot
out[size + 2] = 0
if allowed > 0 and long > 0 then
  local plain, known = string.match(text, '^([^~]*)~?%d*/?(%d*)$')
  if known ~= '' and known ~= '0' then id = known end
  text = string.format('%s~%d/%s', plain, slot == era and slot + 1 or slot, id) -- the era itself would say: no slices
  out[size + 2] = era > 0 and era or id + 0
end
-- </slice>

-- <ticket>
-- The instant of the entry, and the era if that instant is used again in it.
-- needs: era out size slot
-- sets:
out[size + 1] = slot
out[size + 2] = slot <= era and era or 0
-- </ticket>

-- <giveback>
-- The totals from the ticket's entry on are rewritten, and an entry without permits goes.
-- Only the last entry of a caller's clock stays as long as the clocks may be apart: without
-- its instant, a clock that is behind would find the windows of that time unused again.
-- If 512 entries or more came after the ticket's, nothing is given back: each takes 1 to 2 µs.
-- Of a slice, nothing is unless the state has its id. Of a ticket, unless it has the era of its instant.
-- needs: back budget call corrupt era exists gone instant key present rule said slack where which
-- sets: budget given
local given = 0
if exists and (which + 0 == (where + 0 > era and 0 or era) or string.match(said, '~%d+/0?(%d+)') == which) then
  local entries, count, latest = 512, 3, nil -- entries is exact if there are one or two
  while true do -- the last entries, and the total before them
    latest = call('LRANGE', key, -2 * count - 1, '-1')
    if #latest <= 2 * count then -- the whole log, with the rule
      if #latest < 4 or #latest % 2 == 1 then return {err = corrupt} end
      table.remove(latest, 1)
      entries = (#latest - 1) / 2
      break
    end
    if count == 512 or tonumber(latest[2]) <= where + 0 then break end
    count = math.min(count * 8, 512)
  end
  local found = 2
  while latest[found] and tonumber(latest[found]) < where + 0 do
    found = found + 2
  end
  budget = budget - #latest / 2
  local own = 0
  if latest[found] and tonumber(latest[found]) == where + 0 then own = latest[found + 1] - latest[found - 1] end
  given = math.min(back, own)
  if given > 0 then
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
-- </giveback>
]]
