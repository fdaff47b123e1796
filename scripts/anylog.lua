-- What a log with one rule and a log with several share.
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
-- the value of the one after it: lowest and highest are those of low and high.
-- It takes at most two reads for each halving: first the guess, if there is one,
-- then where evenly spaced entries would have it and in the middle in turn.
local function find(read, mark, low, high, lowest, highest, guess)
  local halve = false
  while high - low > 1 do
    if not guess then
      if halve or highest <= lowest then
        guess = math.floor((low + high) / 2)
      else
        guess = low + math.floor((high - low) * (mark - lowest) / (highest - lowest))
        guess = math.min(math.max(guess, low + 1), high - 1)
      end
      halve = not halve
    end
    local value = read(guess)
    if not value then
      broken = true
      return low
    end
    if value <= mark then
      low = guess
      lowest = value
    else
      high = guess
      highest = value
    end
    guess = nil
  end
  return low, highest
end

--- rewind
if instant > slot then -- the clock stepped back: all since is now
  if oldest <= slot then
    kept = find(date, slot, 1, last, oldest, instant)
  else
    oldest = slot
  end
  last = kept + 1
  instant = slot
  stale = true
end

--- expire
local ttl, left = (slot + longest - now) / 1000, -1
ttl = ttl - ttl % 2 + 101
if exists and recent == slot then left = call('PTTL', key) end -- it was set for this slot
if left < ttl - 50 or left > ttl + 50 then redis.call('PEXPIRE', key, ttl) end
