-- The entries of a log in a hash: the fields "first" and "last" number them, a
-- field of that number holds "<instant>/<total>".

--- storage
local corrupt = 'CORRUPT no state of a log in a hash'
local exists, first, ending = false, 0, 0
local head = {}

local function field(entry)
  return string.format('%.0f', first + entry)
end

local function parse(value)
  if not value then return nil end
  return string.match(value, '^(%d+)/(%d+)$')
end

-- The last entry's number, instant and total; or nil and what is wrong.
local function open()
  local ends = call('HMGET', key, 'first', 'last')
  if ends.err then return nil, ends.err end
  if not ends[1] and not ends[2] then return 0, 0, 0 end
  exists = true
  first = tonumber(ends[1])
  ending = tonumber(ends[2])
  if not first or not ending or ending <= first then return nil, corrupt end
  local entries = call('HMGET', key, field(0), field(1), ends[2])
  head[0] = entries[1]
  head[1] = entries[2]
  local instant, total = parse(entries[3])
  if not instant then return nil, corrupt end
  ending = ending - first
  return ending, instant + 0, total + 0
end

local function date(entry)
  local instant = parse(head[entry] or call('HGET', key, field(entry)))
  return tonumber(instant)
end

local function sum(entry)
  local _, total = parse(head[entry] or call('HGET', key, field(entry)))
  return tonumber(total)
end

local function delete(from, to)
  while from <= to do
    local fields = {}
    for entry = from, math.min(to, from + 999) do
      fields[#fields + 1] = field(entry)
    end
    redis.call('HDEL', key, unpack(fields))
    from = from + 1000
  end
end

-- Forgets what follows the entry kept.
local function cut(kept)
  delete(kept + 1, ending)
end

local function amend(entry, instant, total)
  redis.call('HSET', key, field(entry), string.format('%.0f/%.0f', instant, total))
end

local function append(kept, instant, total)
  local value = string.format('%.0f/%.0f', instant, total)
  if exists then
    redis.call('HSET', key, 'last', field(kept + 1), field(kept + 1), value)
  else
    redis.call('HSET', key, 'first', 0, 'last', 1, 0, '0/0', 1, value)
  end
end

-- Forgets what precedes the entry kept.
local function drop(kept)
  redis.call('HSET', key, 'first', field(kept))
  delete(0, kept - 1)
end
