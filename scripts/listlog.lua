-- The entries of a log in a list: instant, total, instant, total, … In a node of
-- the list an entry takes about 14 bytes.

--- open
-- exists, then instant and total of the last entry, base (total of entry 0) and
-- oldest (instant of entry 1).
local corrupt = 'CORRUPT no state of a log in a list'
local exists, instant, total, base, oldest = false, 0, 0, 0, 0
local last
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

--- span
-- last (number), which few decisions need.
if not last then
  local length = call('LLEN', key)
  if length < 4 or length % 2 == 1 then return {err = corrupt} end
  last = length / 2 - 1
end

--- read
-- Instant and total of an entry, nil where there is none.
local near, first = {}, 0
-- Reads four entries at once: to get there costs the most.
local function fetch(entry)
  first = 2 * entry - 1
  near = call('LRANGE', key, 2 * entry, 2 * entry + 7)
end
local function date(entry)
  return tonumber(near[2 * entry - first] or call('LINDEX', key, 2 * entry))
end
local function sum(entry)
  return tonumber(near[2 * entry + 1 - first] or call('LINDEX', key, 2 * entry + 1))
end

--- write
-- Dates what came after the entry kept, and all that was granted, at slot, and
-- forgets what precedes the entry forget.
local upto = string.format('%d', total)
if renew then redis.call('UNLINK', key) end
if stale then redis.call('LTRIM', key, '0', 2 * kept + 1) end
if exists and recent == slot and not stale then
  redis.call('LSET', key, '-1', upto)
elseif exists then
  redis.call('RPUSH', key, string.format('%d', slot), upto)
else
  redis.call('RPUSH', key, '0', '0', string.format('%d', slot), upto)
end
if forget > 0 then redis.call('LTRIM', key, 2 * forget, '-1') end
