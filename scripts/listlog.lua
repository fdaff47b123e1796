-- The entries of a log in a list: instant, total, instant, total, … In a node of
-- the list an entry takes about 14 bytes.

--- storage
local corrupt = 'CORRUPT no state of a log in a list'
local exists, head = false, nil

-- The last entry's number, instant and total; or nil and what is wrong.
local function open()
  local length = call('LLEN', key)
  if type(length) == 'table' then return nil, length.err end
  if length == 0 then return 0, 0, 0 end
  exists = true
  head = call('LRANGE', key, 0, 2)
  local tail = call('LRANGE', key, -2, -1)
  local instant, total = tonumber(tail[1]), tonumber(tail[2])
  if length < 4 or length % 2 == 1 or not instant or not total then return nil, corrupt end
  return length / 2 - 1, instant, total
end

local function date(entry)
  if entry < 2 then return tonumber(head[2 * entry + 1]) end
  return tonumber(call('LINDEX', key, 2 * entry))
end

local function sum(entry)
  if entry == 0 then return tonumber(head[2]) end
  return tonumber(call('LINDEX', key, 2 * entry + 1))
end

-- Forgets what follows the entry kept.
local function cut(kept)
  redis.call('LTRIM', key, 0, 2 * kept + 1)
end

local function amend(_, _, total)
  redis.call('LSET', key, -1, string.format('%.0f', total))
end

local function append(_, instant, total)
  local at, upto = string.format('%.0f', instant), string.format('%.0f', total)
  if exists then
    redis.call('RPUSH', key, at, upto)
  else
    redis.call('RPUSH', key, 0, 0, at, upto)
  end
end

-- Forgets what precedes the entry first.
local function drop(first)
  redis.call('LTRIM', key, 2 * first, -1)
end
