-- The entries of a log in a list: instant, total, instant, total, … In a node of
-- the list an entry takes about 14 bytes.

--- open
-- exists, then last (number), instant and total of the last entry, base (total of
-- entry 0) and oldest (instant of entry 1).
local corrupt = 'CORRUPT no state of a log in a list'
local exists, last, instant, total, base, oldest = false, 0, 0, 0, 0, 0
local length = call('LLEN', key)
if length ~= 0 then
  if type(length) == 'table' then return length end
  if length < 4 or length % 2 == 1 then return {err = corrupt} end
  exists = true
  last = length / 2 - 1
  local head = call('LRANGE', key, 1, 2)
  base = tonumber(head[1])
  oldest = tonumber(head[2])
  local tail = call('LRANGE', key, -2, -1)
  instant = tonumber(tail[1])
  total = tonumber(tail[2])
  if not base or not oldest or not instant or not total then return {err = corrupt} end
end

--- read
-- Instant and total of an entry, nil where there is none.
local function date(entry)
  return tonumber(call('LINDEX', key, 2 * entry))
end
local function sum(entry)
  return tonumber(call('LINDEX', key, 2 * entry + 1))
end

--- write
-- Dates what came after the entry kept, and all that was granted, at slot, and
-- forgets what precedes the entry forget.
if renew then redis.call('UNLINK', key) end
if stale then redis.call('LTRIM', key, 0, 2 * kept + 1) end
if exists and recent == slot and not stale then
  redis.call('LSET', key, -1, string.format('%d', total))
elseif exists then
  redis.call('RPUSH', key, string.format('%d', slot), string.format('%d', total))
else
  redis.call('RPUSH', key, 0, 0, string.format('%d', slot), string.format('%d', total))
end
if forget > 0 then redis.call('LTRIM', key, 2 * forget, -1) end
