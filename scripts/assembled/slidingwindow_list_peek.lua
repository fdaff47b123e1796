-- Looks at a key for one request for one permit: takes nothing and writes nothing.
-- KEYS and ARGV are those of the algorithm's script, whose blocks replace the marked
-- lines. The reply is the words of a run of one request, before it has taken anything.
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- needs:
-- sets: grain limit window longest corrupt
local grain, limit, window = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local longest = window
local corrupt = 'CORRUPT no state of a log in a list'
local out, size = {}, 0
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
-- needs: call key now grain window corrupt
-- sets: slot exists total base oldest last renew kept repair forget used stored recent newest
local slot, edge = now - now % grain + grain - 1, now - window

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
local renew, kept, repair, forget = false, 0, false, 0
-- Unless the clock stepped back or an entry has left the window, the numbers of entries are
-- not needed.
if exists and (instant > slot or oldest <= edge or instant <= edge) then
  local length = call('LLEN', key)
  if length < 4 or length % 2 == 1 then return {err = corrupt} end
  last = length / 2 - 1
  renew = instant <= edge
  if renew then -- all entries have left the window
    exists = false
    instant = 0
    total = 0
    base = 0
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
  if exists and oldest <= edge then -- more entries have left the window, often just one
    local from, guess, width, alive, upto = 0, 1, 2, oldest
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
    forget = from
    base = upto
    oldest = alive
  end
end
local used, stored, recent, newest = total - base, total, instant, instant
if not (used >= 0) then return {err = corrupt} end -- "not", because it may be NaN
-- needs: n times limit used
-- sets: allowed before
local allowed, before = times, used
local room = limit - used
if n * allowed > room then
  allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
end
-- Computes when the entry leaves the window that makes room. It is an entry of this
-- execution if the stored ones are not enough.
-- needs: call key n times now limit window corrupt slot base oldest last forget used stored recent allowed
-- sets: wait
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
  wait = leaves + window - now
end
-- needs: out size now newest allowed before wait
-- sets: size
out[size + 1] = allowed
out[size + 2] = newest - now
out[size + 3] = wait
out[size + 4] = before
size = size + 4
return out
