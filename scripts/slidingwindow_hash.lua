-- A log under one rule, in a hash: the sliding window in sub-windows, with the
-- storage Hash.
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
-- State    the fields "rule"; "instant" and "total" of the last entry, "base" (total of
--          entry 0) and "oldest" (instant of entry 1), which every decision needs;
--          "first" and "last", the numbers of entry 0 and of the last; and a field for
--          each entry between: its number, with "<instant>/<total>". Up to fifteen
--          fields before "first" are not deleted yet; those from "last" on, which a
--          clock that stepped back leaves, are overwritten
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
-- needs: bounds budget call corrupt grain key longest mark now rule spare window
-- sets: alive base budget era exists first forget gone instant last left newest oldest others present recent renew repair said slack slot stored text total under used

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
local era = 0
local renew, kept, repair, forget = false, 0, false, 0
-- Others have used the key, or the clock is behind.
if said ~= rule or instant > slot then
  -- <writer/>
  -- <rewind>
  -- The server's clock stepped back before the slot of the last entry: permits taken after
  -- that slot's present one count as taken in it. If slices may be out, they count as taken a slot
  -- from now, beyond which none lasts. Instants are used again now, so an era begins: see giveback.
  -- needs: bounds budget call coarse corrupt era first instant kept key last lent mark now oldest repair said series signed
  -- sets: budget era first instant last lent oldest repair said series
  if instant - coarse >= now and mark == '' and signed == '' then
    first, last = bounds(key)
    if not last then return {err = corrupt} end
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
        local entry = call('HMGET', key, string.format('%d', first + middle))[1]
        local at = tonumber((string.match(entry or '', '^(%d+)/')))
        budget = budget - 4
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
  -- <others/>
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
      -- needs: alive budget call corrupt edge first from guess instant key last upto
      -- sets: alive budget from upto
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
        if readings < 4 then share = (edge - lowAt) / (highAt - lowAt) else budget = budget - 4 end
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
-- execution if the stored ones are not enough. Reads what the store needs too: after
-- this block nothing is found to be corrupt.
-- needs: alive allowed base bounds budget call corrupt exists first forget gone key last left limit n now oldest recent slot stored times under used window
-- sets: base budget first forget last oldest wait
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
      -- needs: below belowSum bounds budget call corrupt first goal key last leaves recent stored
      -- sets: budget first last leaves
      if not last then
        first, last = bounds(key)
        if not last then return {err = corrupt} end
      end
      local above, aboveSum, readings = last, stored, 0
      local guess = math.min(below + goal - belowSum - 1, above - 1) -- right if entries have one permit each
      while true do
        local number = first + guess
        local pair = call('HMGET', key, string.format('%d', number), string.format('%d', number + 1))
        local sum = belowSum
        if guess > below then sum = tonumber((string.match(pair[1] or '', '/(%d+)$'))) end
        local after = stored
        leaves = recent
        if guess + 1 < last then
          local at, sumAt = string.match(pair[2] or '', '^(%d+)/(%d+)$')
          leaves = tonumber(at)
          after = tonumber(sumAt)
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
        if readings < 4 then share = (goal - 1 - belowSum) / (aboveSum - belowSum) else budget = budget - 4 end
        guess = below + math.floor((above - below) * share)
      end
      -- </reach>
    end
  end
  wait = leaves + window
  if allowed == 0 and wait > gone then wait = gone end
  wait = wait - now
end
if allowed > 0 and exists then
  if recent ~= slot and not last then -- the last entry gets a field of its own
    first, last = bounds(key)
    if not last then return {err = corrupt} end
  end
  if forget > 256 then -- the rest is for the next calls: so many fields take 60 µs
    local pair = call('HMGET', key, string.format('%d', first + 256), string.format('%d', first + 257))
    forget = 256
    base = tonumber((string.match(pair[1] or '', '/(%d+)$')))
    oldest = tonumber((string.match(pair[2] or '', '^(%d+)/')))
    if not (base and oldest) then return {err = corrupt} end
  end
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
  -- needs: base budget exists first forget gone instant key last oldest present recent renew repair said slack slot stored text total
  -- sets: budget exists oldest renew total
  if repair then
    redis.call('HSET', key, 'rule', said, 'instant', string.format('%d', instant),
      'oldest', string.format('%d', oldest), 'last', string.format('%d', first + last))
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
      local at = string.format('%d', slot)
      redis.call('HSET', key, 'rule', text, 'instant', at, 'total', sum, 'base', '0', 'oldest', at,
        'first', '0', 'last', '1')
    else
      if text ~= said then redis.call('HSET', key, 'rule', text) end
      if recent == slot then
        redis.call('HSET', key, 'total', sum)
        if forget > 0 then
          redis.call('HSET', key, 'base', string.format('%d', base), 'oldest', string.format('%d', oldest),
            'first', string.format('%d', first + forget))
        end
      else -- the last entry gets a field of its own
        local at, number = string.format('%d', slot), string.format('%d', first + last)
        local entry, following = string.format('%d/%d', instant, stored), string.format('%d', first + last + 1)
        if text ~= said and string.sub(said, -1) == '!' then -- it has no permits, and this one replaces it
          following = number
          if oldest == instant then
            oldest = slot
            redis.call('HSET', key, 'oldest', at)
          end
        end
        if forget > 0 then
          redis.call('HSET', key, 'instant', at, 'total', sum, 'base', string.format('%d', base),
            'oldest', string.format('%d', oldest), 'first', string.format('%d', first + forget), 'last', following,
            number, entry)
        else
          redis.call('HSET', key, 'instant', at, 'total', sum, 'last', following, number, entry)
        end
      end
      if forget > 0 then -- the fields up to entry 0 are deleted sixteen at a time
        local numbers, number = {}, first - first % 16
        while number + 16 <= first + forget do
          for i = 1, 16 do
            numbers[#numbers + 1] = string.format('%d', number + i)
          end
          number = number + 16
        end
        if numbers[1] then redis.call('HDEL', key, unpack(numbers)) end
        budget = budget - #numbers / 2
      end
    end
  end
  -- The TTL is set to 0.9 s more than needed, so that a key in use needs it only about once
  -- a second. It is odd, because Redis 7.2.0 writes 100000000 as 1e+8.
  local ttl = (gone - present) / 1000
  ttl = ttl - ttl % 2 + slack
  if old < ttl + 50 or old > ttl + 950 then redis.call('PEXPIRE', key, ttl + 901) end
  -- </store>
else
  -- <expire/>
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
-- <span/>
-- </lease>

-- <slice/>

-- <ticket/>

-- <giveback>
-- The totals from the ticket's entry on are rewritten, and an entry without permits goes.
-- Only the last entry of a caller's clock stays as long as the clocks may be apart: without
-- its instant, a clock that is behind would find the windows of that time unused again.
-- If 512 entries or more came after the ticket's, nothing is given back: each takes 1 to 2 µs.
-- Of a slice, nothing is unless the state has its id. Of a ticket, unless it has the era of its instant.
-- needs: back bounds budget call corrupt era exists gone key present rule said slack where which
-- sets: budget given
local given = 0
if exists and (which + 0 == (where + 0 > era and 0 or era) or string.match(said, '~%d+/0?(%d+)') == which) then
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
    budget = budget - 3
    at, sum = string.match(entry or '', '^(%d+)/(%d+)$')
    at = tonumber(at)
    sum = tonumber(sum)
  end
  local own = 0
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
    own = sum - below
  end
  given = math.min(back, own)
  if given > 0 then
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
-- </giveback>
]]
