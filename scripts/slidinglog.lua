-- A log under several rules, in a list: the sliding log. (slidingwindow_list.lua
-- decides the sliding log of a single rule, on the same state.)
--
-- An entry of the log is an instant and the permits taken up to it since the log
-- began, so that one subtraction gives the permits of any span. Entry 0 is the last
-- entry that has left every window; only its total is needed.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] resolution, microseconds: permits of one slot share an
--          entry, dated at the last instant of the slot; [3] number of rules; then
--          limit and window (microseconds) of each, from the smallest window up;
--          last the caller's clock, microseconds, if that decides
-- State    instant, total, instant, total, …: entry i is at 2i and 2i + 1, and takes
--          about 14 bytes in a node of the list
-- Reply    the words of a run
-- Words    requests allowed; microseconds from now to the last instant at which a
--          permit was taken, this run's included; microseconds until the first denied
--          request fits; for each rule the permits used before the run; the number of
--          the rule that blocks longest, from 1, or 0
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

-- <config>
-- needs:
-- sets: grain rules limits windows longest corrupt
local grain, rules = ARGV[2] + 0, ARGV[3] + 0
-- These tables begin with room for four rules: to grow one costs a third of a call.
local limits, windows = {0, 0, 0, 0}, {0, 0, 0, 0}
for r = 1, rules do
  limits[r] = ARGV[2 + 2 * r] + 0
  windows[r] = ARGV[3 + 2 * r] + 0
end
local longest = windows[rules]
local corrupt = 'CORRUPT no state of a log in a list'
-- </config>

-- <load>
-- Reads what this decision needs of the log. The blocks after it use:
--   slot            last instant of the present slot, at which permits taken now are dated
--   total, used     permits taken since the log began; those that count now
--                   under the longest rule
--   stored, recent  total and instant of the last entry before this execution; a clock that
--                   stepped back dates it at slot
--   newest          last instant at which a permit was taken, this execution's included
--   last            number of the last entry, nil unless it was needed
--   exists, renew   there is a log to go on with; there is one that has to be deleted
--   repair, kept    the clock stepped back: the entries after number kept have to go
--   forget          number of the entry that becomes entry 0
-- needs: call key now grain rules limits windows longest corrupt
-- sets: slot exists total last renew kept repair left bases alives forget used stored recent newest
local slot = now - now % grain + grain - 1

-- <open>
-- The last entry (instant, total), the total of entry 0 (base) and the instant of
-- entry 1 (oldest).
-- needs: call key corrupt
-- sets: exists instant total base oldest
local exists, instant, total, base, oldest = false, 0, 0, 0, 0
local tail = call('LRANGE', key, '-2', '-1')
if tail.err then return tail end
if tail[1] then
  exists = true
  instant = tonumber(tail[1])
  total = tonumber(tail[2])
  local head = call('LRANGE', key, '1', '2')
  base = tonumber(head[1])
  oldest = tonumber(head[2])
  if not (instant and total and base and oldest) then return {err = corrupt} end
end
-- </open>

local last
local renew, kept, repair = false, 0, false
-- Unless the clock stepped back or an entry has left the smallest window, the numbers of
-- entries are not needed.
if exists and (instant > slot or oldest <= now - windows[1] or instant <= now - windows[1]) then
  local length = call('LLEN', key)
  if length < 4 or length % 2 == 1 then return {err = corrupt} end
  last = length / 2 - 1
  renew = instant <= now - longest
  if renew then -- all entries have left every window
    exists = false
    instant = 0
    total = 0
    base = 0
    last = 0
  end
  -- <rewind>
  -- The clock stepped back: permits taken after slot count as taken at slot.
  -- needs: call key slot instant oldest last corrupt kept repair
  -- sets: instant oldest last kept repair
  if instant > slot then
    if oldest <= slot then
      kept = 1
      local high = last
      while high - kept > 1 do
        local middle = math.floor((kept + high) / 2)
        local at = tonumber(call('LRANGE', key, 2 * middle, 2 * middle)[1])
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
end

-- For each rule: the last entry that has left its window (left), the total up to that
-- entry (bases), and the instant of the entry after it (alives). The smaller the
-- window, the more entries have left it.
local left, bases, alives = {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}
local from, upto, alive = 0, base, oldest
for r = rules, 1, -1 do
  local edge = now - windows[r]
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
    -- sets: from upto alive
    local low, lowAt, high, highAt, readings = from + 1, alive, last, instant, 0
    while true do
      local near = call('LRANGE', key, 2 * guess, 2 * guess + width)
      local at, sum = tonumber(near[1]), near[2]
      alive = instant
      if guess + 1 < last then alive = tonumber(near[3]) end
      if near[5] and alive and alive <= edge and guess + 1 < last then -- it is the next entry
        guess = guess + 1
        at = alive
        sum = near[4]
        alive = instant
        if guess + 1 < last then alive = tonumber(near[5]) end
      end
      upto = tonumber(sum)
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
  left[r] = from
  bases[r] = upto
  alives[r] = alive
  if not (total >= upto) then return {err = corrupt} end -- "not", because it may be NaN
end
local forget, used, stored, recent, newest = left[rules], total - bases[rules], total, instant, instant
-- </load>

-- <fit>
-- needs: n times rules limits total bases
-- sets: allowed before
local allowed, before = times, total
for r = 1, rules do
  local room = limits[r] + bases[r] - total
  if n * allowed > room then
    allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
  end
end
-- </fit>

-- <take>
-- needs: n slot total used newest allowed
-- sets: total used newest
total = total + allowed * n
used = used + allowed * n
if allowed > 0 then newest = slot end
-- </take>

-- <wait>
-- Computes, for each rule that blocks, when the entry leaves its window that makes
-- room. It is an entry of this execution if the stored ones are not enough.
-- needs: call key n times now rules limits windows corrupt slot total last left bases alives stored recent allowed
-- sets: wait blocking
local wait, blocking = 0, 0
if allowed < times then
  for r = 1, rules do
    local over = total - bases[r] + n - limits[r] -- so many permits have to leave
    if over > 0 then
      local leaves = slot
      if bases[r] + over <= stored then
        leaves = alives[r]
        if over > 1 then
          local below, belowSum, goal = left[r], bases[r], bases[r] + over
          -- <reach>
          -- Finds the instant (leaves) of the first entry whose total reaches the goal. It
          -- comes after the entry below, whose total is belowSum.
          -- needs: call key last corrupt stored recent goal leaves below belowSum
          -- sets: leaves
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
            if readings < 4 then share = (goal - 1 - belowSum) / (aboveSum - belowSum) end
            guess = below + math.floor((above - below) * share)
          end
          -- </reach>
        end
      end
      if leaves + windows[r] - now > wait then
        wait = leaves + windows[r] - now
        blocking = r
      end
    end
  end
end
-- </wait>

if allowed > 0 or repair then
  -- <store>
  -- needs: key now longest slot exists total renew kept repair forget used recent
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
  if repair then redis.call('LTRIM', key, '0', 2 * kept + 1) end
  if exists and recent == slot and not repair then
    redis.call('LSET', key, '-1', sum) -- the last entry is of this slot
  elseif exists then
    redis.call('RPUSH', key, string.format('%d', slot), sum)
  else
    redis.call('RPUSH', key, '0', '0', string.format('%d', slot), sum) -- entries 0 and 1
  end
  if forget > 0 then redis.call('LTRIM', key, 2 * forget, '-1') end
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
-- needs: now rules bases newest allowed before wait blocking
-- sets:
local out, size = {0, 0, 0, 0, 0, 0}, 0 -- two rules give six words
-- <words>
-- needs: out size now rules bases newest allowed before wait blocking
-- sets: size
out[size + 1] = allowed
out[size + 2] = newest - now
out[size + 3] = wait
for r = 1, rules do
  out[size + 3 + r] = before - bases[r]
end
out[size + 4 + rules] = blocking
size = size + 4 + rules
-- </words>
return out
-- </answer>
