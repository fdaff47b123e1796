-- A log under one rule, in a hash: the sliding window in sub-windows, with the
-- storage Hash.
--
-- An entry of the log is an instant and the permits taken up to it since the log
-- began, so that one subtraction gives the permits of any span. Entry 0 is the last
-- entry that has left the window; only its total is needed.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] resolution, microseconds: permits of one slot share an
--          entry, dated at the last instant of the slot; [3] limit; [4] window,
--          microseconds; last the caller's clock, microseconds, if that decides
-- State    the fields "instant" and "total" of the last entry, "base" (total of
--          entry 0) and "oldest" (instant of entry 1), which every decision needs;
--          "first" and "last", the numbers of entry 0 and of the last; and a field
--          for each entry between: its number, with "<instant>/<total>"
-- Reply    the words of a run
-- Words    requests allowed; microseconds from now to the last instant at which a
--          permit was taken, this run's included; microseconds until the first denied
--          request fits; permits used before the run
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

-- <config>
-- needs: call
-- sets: grain limit window longest corrupt bounds
local grain, limit, window = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local longest = window
local corrupt = 'CORRUPT no state of a log in a hash'
-- The number of entry 0, and that of the last entry counted from there, which few
-- decisions need; nil if they cannot be right. HLEN checks that so many entries exist:
-- store would otherwise delete missing ones one by one, however many.
local function bounds(log)
  local numbers = call('HMGET', log, 'first', 'last')
  local first, final = tonumber(numbers[1]), tonumber(numbers[2])
  if first and final and final > first and call('HLEN', log) >= final - first + 5 then
    return first, final - first
  end
end
-- </config>

-- <load>
-- Reads what this decision needs of the log. The blocks after it use:
--   slot            last instant of the present slot, at which permits taken now are dated
--   total, used     permits taken since the log began; those that count now
--   stored, recent  total and instant of the last entry before this execution; a clock that
--                   stepped back dates it at slot
--   newest          last instant at which a permit was taken, this execution's included
--   last            number of the last entry, nil unless it was needed
--   exists, renew   there is a log to go on with; there is one that has to be deleted
--   repair, kept    the clock stepped back: the entries after number kept have to go
--   forget          number of the entry that becomes entry 0
-- needs: call key now grain window corrupt bounds
-- sets: slot exists instant total base oldest last renew kept repair forget used stored recent newest ending first
local slot, edge = now - now % grain + grain - 1, now - window

-- <open>
-- The last entry (instant, total), the total of entry 0 (base) and the instant of
-- entry 1 (oldest).
-- needs: call key corrupt
-- sets: exists instant total base oldest
local exists, instant, total, base, oldest = false, 0, 0, 0, 0
local fields = call('HMGET', key, 'instant', 'total', 'base', 'oldest')
if fields.err then return fields end
if fields[1] or fields[2] then
  exists = true
  instant = tonumber(fields[1])
  total = tonumber(fields[2])
  base = tonumber(fields[3])
  oldest = tonumber(fields[4])
  if not (instant and total and base and oldest) then return {err = corrupt} end
end
-- </open>

local first, last, ending -- see bounds; ending is last as it is stored
local renew, kept, repair, forget = false, 0, false, 0
-- Unless the clock stepped back or an entry has left the window, the numbers of entries are
-- not needed.
if exists and (instant > slot or oldest <= edge or instant <= edge) then
  first, last = bounds(key)
  if not last then return {err = corrupt} end
  ending = last
  renew = instant <= edge
  if renew then -- all entries have left the window
    exists = false
    instant = 0
    total = 0
    base = 0
  end
  -- <rewind>
  -- The clock stepped back: permits taken after slot count as taken at slot.
  -- needs: call key slot instant oldest last corrupt first kept repair
  -- sets: instant oldest last kept repair
  if instant > slot then
    if oldest <= slot then
      kept = 1
      local high = last
      while high - kept > 1 do
        local middle = math.floor((kept + high) / 2)
        local entry = call('HMGET', key, string.format('%d', first + middle))[1]
        local at = tonumber(string.match(entry or '', '^(%d+)/'))
        if not at then return {err = corrupt} end
        if at <= slot then kept = middle else high = middle end
      end
    else
      oldest = slot
    end
    last = kept + 1
    instant = slot
    repair = true
  end
  -- </rewind>
  if exists and oldest <= edge then -- more entries have left the window, often just one
    local from, guess, alive, upto = 0, 1, oldest
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
      if guess + 1 < last then alive = tonumber(string.match(pair[2] or '', '^(%d+)/')) end
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
    forget = from
    base = upto
    oldest = alive
  end
end
local used, stored, recent, newest = total - base, total, instant, instant
if not (used >= 0) then return {err = corrupt} end -- "not", because it may be NaN
-- </load>

-- <fit>
-- needs: n times limit used
-- sets: allowed before
local allowed, before = times, used
local room = limit - used
if n * allowed > room then
  allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
end
-- </fit>

-- <take>
-- needs: n slot used total newest allowed
-- sets: used total newest
used = used + allowed * n
total = total + allowed * n
if allowed > 0 then newest = slot end
-- </take>

-- <wait>
-- Computes when the entry leaves the window that makes room. It is an entry of this
-- execution if the stored ones are not enough.
-- needs: call key n times now limit window corrupt slot base oldest last forget used stored recent allowed bounds ending first
-- sets: wait ending first last
local wait = 0
if allowed < times then
  local over, leaves = used + n - limit, slot -- so many permits have to leave
  if base + over <= stored then
    leaves = oldest
    if over > 1 then
      local below, belowSum, goal = forget, base, base + over
      -- <reach>
      -- Finds the instant (leaves) of the first entry whose total reaches the goal. It
      -- comes after the entry below, whose total is belowSum.
      -- needs: call key last corrupt stored recent goal bounds ending first leaves below belowSum
      -- sets: leaves ending first last
      if not last then
        first, last = bounds(key)
        if not last then return {err = corrupt} end
        ending = last
      end
      local above, aboveSum, readings = last, stored, 0
      local guess = math.min(below + goal - belowSum - 1, above - 1) -- right if entries have one permit each
      while true do
        local number = first + guess
        local pair = call('HMGET', key, string.format('%d', number), string.format('%d', number + 1))
        local sum = belowSum
        if guess > below then sum = tonumber(string.match(pair[1] or '', '/(%d+)$')) end
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
  wait = leaves + window - now
end
-- </wait>

if allowed > 0 or repair then
  -- <store>
  -- needs: key now longest slot exists total renew kept repair forget used recent base bounds corrupt ending first instant last oldest stored
  -- sets:
  -- Totals only grow. Before they are too large to be exact, the permits that count
  -- under the longest rule begin a new log, as if taken now: they count for longer than
  -- they should, never for less.
  if total > 2 ^ 52 then
    renew = true
    exists = false
    repair = false
    forget = 0
    total = used
  end
  local old = -1 -- the TTL, if it was set for this slot; read before any write
  if exists and recent == slot then old = redis.call('PTTL', key) end
  local sum = string.format('%d', total)
  if renew then redis.call('UNLINK', key) end
  if exists and recent == slot and not repair then
    redis.call('HSET', key, 'total', sum)
  else
    local at = string.format('%d', slot)
    if not exists then
      redis.call('HSET', key, 'instant', at, 'total', sum, 'base', '0', 'oldest', at,
        'first', '0', 'last', '1')
    else
      if not last then
        first, last = bounds(key)
        if not last then return {err = corrupt} end
      end
      if not repair then -- the last entry gets a field of its own
        kept = last
        redis.call('HSET', key, string.format('%d', first + last), string.format('%d/%d', instant, stored))
      end
      redis.call('HSET', key, 'instant', at, 'total', sum, 'last', string.format('%d', first + kept + 1))
    end
  end
  if forget > 0 or repair then
    redis.call('HSET', key, 'first', string.format('%d', first + forget),
      'base', string.format('%d', base), 'oldest', string.format('%d', oldest))
    local gone = {}
    for number = 1, forget do
      gone[#gone + 1] = string.format('%d', first + number)
    end
    if repair then
      for number = kept + 1, ending - 1 do
        gone[#gone + 1] = string.format('%d', first + number)
      end
    end
    for i = 1, #gone, 1000 do
      redis.call('HDEL', key, unpack(gone, i, math.min(i + 999, #gone)))
    end
  end
  -- The TTL is 0.1 s longer than needed. So within a slot it is set again only if it is
  -- more than 50 ms off. It is odd, because Redis 7.2.0 writes 100000000 as 1e+8.
  local ttl = (slot + longest - now) / 1000
  ttl = ttl - ttl % 2 + 101
  if old < ttl - 50 or old > ttl + 50 then redis.call('PEXPIRE', key, ttl) end
  -- </store>
else
  -- <expire>
  -- A denial under a longer window than the one that set the TTL lengthens the TTL:
  -- the state is kept for as long as the reported wait.
  -- needs: key now longest recent
  -- sets:
  local ttl = (recent + longest - now) / 1000
  if recent > 0 and redis.call('PTTL', key) < ttl then
    redis.call('PEXPIRE', key, ttl - ttl % 2 + 101)
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
]]
