-- The entries of a log in a hash. The fields "instant", "total", "base" and
-- "oldest" are what every decision needs; "first" and "last" the numbers of the
-- entries 0 and last; a field of its number "<instant>/<total>" each entry
-- between.

--- open
-- exists, then instant and total of the last entry, base (total of entry 0) and
-- oldest (instant of entry 1).
local corrupt = 'CORRUPT no state of a log in a hash'
local exists, instant, total, base, oldest = false, 0, 0, 0, 0
local first, last, ending
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
local ended = total

--- span
-- last (number), which few decisions need.
if not last then
  local numbers = call('HMGET', key, 'first', 'last')
  first = tonumber(numbers[1])
  last = tonumber(numbers[2])
  if not (first and last) or last <= first then return {err = corrupt} end
  last = last - first
  ending = last
  -- Entries that are not there would be deleted one by one, however many.
  if not (call('HLEN', key) >= last + 5) then return {err = corrupt} end
end

--- read
-- Instant and total of an entry between 0 and last, nil where there is none.
local function entry(number)
  local value = call('HGET', key, string.format('%d', first + number))
  if not value then return nil end
  return string.match(value, '^(%d+)/(%d+)$')
end
local function date(number)
  return tonumber((entry(number)))
end
local function sum(number)
  local _, total = entry(number)
  return tonumber(total)
end

--- write
-- Dates what came after the entry kept, and all that was granted, at slot, and
-- forgets what precedes the entry forget.
local upto = string.format('%d', total)
if renew then redis.call('UNLINK', key) end
if exists and recent == slot and not stale then
  redis.call('HSET', key, 'total', upto)
else
  local at = string.format('%d', slot)
  if not exists then
    redis.call('HSET', key, 'instant', at, 'total', upto, 'base', '0', 'oldest', at, 'first', '0', 'last', '1')
  else
--@ span
    if not stale then -- the last entry becomes one between
      kept = last
      redis.call('HSET', key, string.format('%d', first + last), string.format('%d/%d', instant, ended))
    end
    redis.call('HSET', key, 'instant', at, 'total', upto, 'last', string.format('%d', first + kept + 1))
  end
end
if forget > 0 or stale then
  redis.call('HSET', key, 'first', string.format('%d', first + forget),
    'base', string.format('%d', base), 'oldest', string.format('%d', oldest))
  local gone = {}
  for number = 1, forget do
    gone[#gone + 1] = string.format('%d', first + number)
  end
  if stale then
    for number = kept + 1, ending - 1 do
      gone[#gone + 1] = string.format('%d', first + number)
    end
  end
  for i = 1, #gone, 1000 do
    redis.call('HDEL', key, unpack(gone, i, math.min(i + 999, #gone)))
  end
end
