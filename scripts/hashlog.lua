-- The entries of a log in a hash. The fields "first" and "last" are the numbers
-- of the entries 0 and last; "base", "oldest", "instant" and "total" what every
-- decision needs; a field of its number "<instant>/<total>" for each entry
-- between.

--- open
-- exists, then last (number), instant and total of the last entry, base (total of
-- entry 0) and oldest (instant of entry 1).
local corrupt = 'CORRUPT no state of a log in a hash'
local exists, first, last, instant, total, base, oldest = false, 0, 0, 0, 0, 0, 0
local fields = call('HMGET', key, 'first', 'last', 'instant', 'total', 'base', 'oldest')
if fields.err then return fields end
if fields[1] or fields[2] then
  exists = true
  first = tonumber(fields[1])
  last = tonumber(fields[2])
  instant = tonumber(fields[3])
  total = tonumber(fields[4])
  base = tonumber(fields[5])
  oldest = tonumber(fields[6])
  if not (first and last and instant and total and base and oldest) or last <= first then
    return {err = corrupt}
  end
  last = last - first
end
local ending, ended = last, total

--- check
-- Entries that are not there would be deleted one by one, however many.
if not (call('HLEN', key) >= last + 5) then return {err = corrupt} end

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
local at, upto = string.format('%d', slot), string.format('%d', total)
if renew then redis.call('UNLINK', key) end
if not exists then
  redis.call('HSET', key, 'first', 0, 'last', 1, 'instant', at, 'total', upto, 'base', 0, 'oldest', at)
else
  if recent == slot and not stale then
    redis.call('HSET', key, 'total', upto)
  else
    redis.call('HSET', key, 'last', string.format('%d', first + kept + 1), 'instant', at, 'total', upto)
    if not stale then -- the last entry becomes one between
      redis.call('HSET', key, string.format('%d', first + last), string.format('%d/%d', instant, ended))
    end
    if forget == kept then oldest = slot end
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
end
