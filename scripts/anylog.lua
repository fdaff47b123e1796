-- What the logs share. The answer is that of one rule, and of the sorted set.
-- longest  the longest window, microseconds

--- renew
local renew = exists and instant <= now - longest
if renew then -- all of it is forgotten
--@ span
  exists = false
  instant = 0
  total = 0
  base = 0
end

--- find
local broken = false
-- The last entry from low on, and before high, that is not beyond the mark, and
-- the value of the one after it: highest is that of high. It reads the guess, goes
-- a few entries on towards the mark, and then halves.
local function find(read, mark, low, high, highest, guess)
  local step = 1
  while high - low > 1 do
    if not (guess > low and guess < high) then guess = math.floor((low + high) / 2) end
    local value = read(guess)
    if not value then
      broken = true
      return low
    end
    if value <= mark then
      low = guess
      guess = guess + step
    else
      high = guess
      highest = value
      guess = guess - step
    end
    step = step * 2
    if step > 8 then guess = low end
  end
  return low, highest
end

--- rewind
if instant > slot then -- the clock stepped back: all since is now
  if oldest <= slot then
    kept = find(date, slot, 1, last, instant, last - 1)
  else
    oldest = slot
  end
  last = kept + 1
  instant = slot
  stale = true
end

--- rebase
-- Totals only grow. Before they cease to be exact, what counts under the longest
-- rule begins anew, as if granted now: it counts for longer, never for less.
if total > 2 ^ 52 then
  renew = true
  exists = false
  stale = false
  forget = 0
  total = counts
end

--- left
-- The TTL that was set for this slot; asked before anything is written.
local left = -1
if exists and recent == slot then left = redis.call('PTTL', key) end

--- expire
local ttl = (slot + longest - now) / 1000
ttl = ttl - ttl % 2 + 101
if left < ttl - 50 or left > ttl + 50 then redis.call('PEXPIRE', key, ttl) end

--- keep
-- Denied under a longer window than the one that set the TTL: what is known has
-- to be known for as long as it is told.
local ttl = (recent + longest - now) / 1000
if recent > 0 and redis.call('PTTL', key) < ttl then
  redis.call('PEXPIRE', key, ttl - ttl % 2 + 101)
end

--- answer
return {granted, newest - now, blocked, before}

--- emit
out[size + 1] = granted
out[size + 2] = newest - now
out[size + 3] = blocked
out[size + 4] = before
size = size + 4
