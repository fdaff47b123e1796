-- Looks at a key for one request for one permit: takes nothing and writes nothing.
-- KEYS and ARGV are those of the algorithm's script, whose blocks replace the marked
-- lines. The reply is the words of a run of one request, before it has taken anything.
local key, n, times = KEYS[1], ARGV[1], 1
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
local out, size = {}, 0
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
  -- The server's clock stepped back before the slot of the last entry: permits taken after
  -- that slot's present one count as taken in it.
  -- needs: bounds call coarse corrupt first instant kept key last mark now oldest repair signed
  -- sets: first instant last oldest repair
  if instant - coarse >= now and mark == '' and signed == '' then
    first, last = bounds(key)
    if not last then return {err = corrupt} end
    instant = now - now % coarse + coarse - 1
    if oldest < instant then
      kept = 1
      local high = last
      while high - kept > 1 do
        local middle = math.floor((kept + high) / 2)
        local entry = call('HMGET', key, string.format('%d', first + middle))[1]
        local at = tonumber((string.match(entry or '', '^(%d+)/')))
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
-- needs: n times limit used
-- sets: allowed before room
local allowed, before = times, used
local room = limit - used
if n * allowed > room then
  allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
end
-- Computes when the entry leaves the window that makes room. It is an entry of this
-- execution if the stored ones are not enough. Reads what the store needs too: after
-- this block nothing is found to be corrupt.
-- needs: alive allowed base bounds call corrupt exists first forget gone key last left limit n now oldest recent slot stored times under used window
-- sets: base first forget last oldest wait
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
      -- needs: below belowSum bounds call corrupt first goal key last leaves recent stored
      -- sets: first last leaves
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
        if readings < 4 then share = (goal - 1 - belowSum) / (aboveSum - belowSum) end
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
  if forget > 1000 then -- the rest is for the next calls: a thousand fields take a tenth of a millisecond
    local pair = call('HMGET', key, string.format('%d', first + 1000), string.format('%d', first + 1001))
    forget = 1000
    base = tonumber((string.match(pair[1] or '', '/(%d+)$')))
    oldest = tonumber((string.match(pair[2] or '', '^(%d+)/')))
    if not (base and oldest) then return {err = corrupt} end
  end
end
-- needs: out size now newest allowed before wait
-- sets: size
out[size + 1] = allowed
out[size + 2] = newest - now
out[size + 3] = wait
out[size + 4] = before
size = size + 4
return out
