-- Tickets with a lease, of a bucket or a window: what estimates took comes back when their leases end. These blocks stand
-- beside those of an algorithm's file (internal/scripts/tickets.go), whose load is then "state" and whose store is "write".
-- A limiter without such tickets runs none of this.
--
-- KEYS     behind the key, or all keys, that of the tickets of each
-- State    of the tickets: a sorted set with a member for each, "<permits>/<where>/<which>/<lease>/<id>", whose score is the
--          instant at which the lease ends. where and which are what the block giveback needs; where is 0 if it needs none
-- Words    one more than the algorithm's: microseconds until tickets that end make room for the denied request, 0 if none do

-- <limits>
local limits, names = {}, {}
for i = 1, #KEYS / 2 do
  names[i] = KEYS[i]
  limits[KEYS[i]] = KEYS[#KEYS / 2 + i]
end
local KEYS = names
-- </limits>

-- <load>
-- Gives back what a hundred tickets whose lease has ended have taken, as a settlement by 0 does. The rest counts as taken until
-- later calls. The tickets go first: if a write fails, nothing comes back twice. A settlement that gives back leaves
-- that to others, and while a cancel is decided (operations.lua), call does not ask Redis. The blocks after it use:
--   held         the key of the tickets
--   outstanding  there are tickets
--   kept         how long they have to be kept at least, milliseconds
--   first        a ticket of this execution is the only one
--   soon         a word, see seek
local held, outstanding, kept, soon, first = limits[key], false, 0, 0
if call == redis.pcall and not limits.settles then
  local next = call('ZRANGE', held, '0', '0', 'WITHSCORES')
  if next.err then return next end
  outstanding = next[1] ~= nil
  if outstanding and next[2] + 0 <= now then
    local ended = call('ZRANGEBYSCORE', held, '-inf', string.format('%d', now), 'WITHSCORES', 'LIMIT', '0', '100')
    if ended.err then return ended end
    local sums, count = {}, #ended / 2 -- of those that can come back together
    for i = 1, #ended, 2 do
      local permits, place, which = string.match(ended[i], '^(%d+)/(%d+/(%d+))/')
      if not permits then return {err = 'CORRUPT no tickets'} end
      if which == '1' then place = string.format('%s/%s/%d', place, ended[i + 1], i) end
      sums[place] = (sums[place] or 0) + permits
      budget = budget - 2
    end
    redis.call('ZREMRANGEBYRANK', held, '0', count - 1)
    outstanding = false
    for place, back in pairs(sums) do
      local where, which, stops = string.match(place, '^(%d+)/(%d+)/?(%d*)')
      budget = budget - 8
      -- <state/>
      -- <exactly?/>
      -- <giveback/>
    end
    outstanding = redis.call('ZCARD', held) > 0
  end
end
-- <state/>
-- </load>

-- <seek>
-- When tickets that end make room for the first denied request: the least of max(ends, fits) for those that end first, where
-- fits is when it fits once their permits are back. If 256 do not say so, the call asks again when the last of them ends.
-- After the server's clock stepped back, no lease ends later than one that begins now.
soon = 0
if allowed < times and outstanding then
  local back, ends, fits, from, least = 0, 0, 2 ^ 53, 0, 2 ^ 53
  while from < 256 and ends < least do
    local some = call('ZRANGE', held, from, from + 15, 'WITHSCORES')
    if some.err then return some end
    for i = 1, #some, 2 do
      local permits, where, which, lease = string.match(some[i], '^(%d+)/(%d+)/(%d+)/(%d+)/')
      if not permits then return {err = 'CORRUPT no tickets'} end
      ends = math.max(some[i + 1] - now, 1)
      if ends > lease + 0 then
        ends = lease + 0
        redis.call('ZADD', held, now + ends, some[i])
      end
      -- <frees/>
      least = math.min(least, math.max(ends, fits))
      budget = budget - 2
    end
    from = from + 16
    if #some < 32 then ends = 2 ^ 53 end -- there are no others
  end
  if ends < least then least = ends end
  if least < 2 ^ 53 then soon = least end
end
-- </seek>

-- <frees of bucket>
-- In units, because exact returns are. What another rule's state gives back is not known to the microsecond, nor what comes
-- back while permits are promised or leased: then the call asks again when a ticket ends.
local gain = permits * permit
if which == '1' then gain = math.max(gain - (present + ends - where) * flow, 0) end
back = back + gain
fits = 0
if not theirs and writes == rule then
  local over = missing + (allowed + 1) * cost - back - capacity
  if over > 0 then fits = lag + (over + -over % flow) / flow end
end
-- </frees of bucket>

-- <exactly of bucket>
-- With exact returns, as much as came back at the end, or when the state was written last.
if which == '1' and state then
  local from = math.max(stops, tonumber(string.sub(state, 1, 16), 10) or now)
  where = where + math.max(present - from, 0)
end
-- </exactly of bucket>

-- <frees of datedwindow>
if where + 0 == start then back = back + permits end
if used + (allowed + 1) * n - math.min(back, used) <= limit then fits = 0 end
-- </frees of datedwindow>

-- <frees of calendarwindow>
if where + 0 == closes and keep >= closes then back = back + permits end
if used + (allowed + 1) * n - math.min(back, used) <= limit then fits = 0 end
-- </frees of calendarwindow>

-- <soon>
-- Behind the words of the algorithm.
out[size + 1] = soon
size = size + 1
-- </soon>

-- <keep>
-- Behind the store, which has just set ttl: tickets are kept for as long as their permits can count, and for their leases.
if outstanding then
  ttl = math.max(ttl + margin, kept) + 4
  if first or redis.call('PTTL', held) < ttl then redis.call('PEXPIRE', held, string.format('%d', ttl + 950)) end
end
-- </keep>

-- <full>
-- Behind fit: one key has at most ten thousand tickets.
local full = fresh and allowed > 0 and outstanding and redis.call('ZCARD', held) >= 10000
if full then allowed = 0 end
-- </full>

-- <begin>
-- Behind ticket, whose words it makes those of the ticket's name; the second is -1 if there are too many tickets. how says
-- what giveback needs: '0' the words, '1' the instant, for exact returns, '2' neither. old is the ticket that takes more: they
-- become one, unless the old one's window is over.
if allowed > 0 then
  local where, which, total = out[size + 1], out[size + 2], n + 0
  if how == '1' then which = 1 end
  if how == '2' then where = 0 end
  if old then
    redis.call('ZREM', held, old.name)
    if how == '1' then where = old.where end
    if where == old.where and which == old.which then total = total + old.permits end
  end
  out[size + 1] = where
  out[size + 2] = which
  -- A number costs Redis more than its text, and a format more than to join texts; total has less than 14 digits.
  local place = how == '2' and '0/0' or string.format('%d/%d', where, which)
  redis.call('ZADD', held, string.format('%d', now + lease), total .. '/' .. place .. '/' .. lease .. '/' .. id)
  first = first or not outstanding
  outstanding = true
  kept = lease / 1000
elseif full then
  out[size + 2] = -1
end
-- </begin>

-- <tickets>
-- In front of load, of an operation on one ticket: finds it before those are given back whose lease has ended, so that its
-- permits stay its own until another call needs them.
local tickets, fresh, old, lease, how, id = limits[key], kind == 'a'
limits.settles = false
if fresh then
  local sort, span, own, further = string.match(operations, '^%d+a(%d)/(%d+)/(%w+),?()', begin)
  how = sort
  lease = span
  id = own
  stop = further
elseif kind == 'u' then
  local name, of, where, by, further = string.match(operations, '^%d+u%d/((%d+)/(%d+)/(%d+)/[^,]*),?()', begin)
  stop = further
  local found = call('ZREM', tickets, name)
  if type(found) == 'table' then return found end
  local more = permits - found * of
  size = size + 1
  if found == 1 and more < 0 then
    out[size] = 1
    limits.settles = true
    back = -more
    amount = where
    which = by
  elseif more > 0 then
    out[size] = 2 * found
    kind = 'c'
    permits = more
    amount = 1
  else
    out[size] = 3 + found
    kind = 'n'
    limits.settles = true
  end
elseif kind == 'w' or kind == 'm' then
  local sort, name, of, where, by, span, own, further =
    string.match(operations, '^%d+%a(%d)/((%d+)/(%d+)/(%d+)/(%d+)/(%w+)),?()', begin)
  how = sort
  lease = span
  id = own
  stop = further
  local ends = call('ZSCORE', tickets, name)
  if type(ends) == 'table' then return ends end
  size = size + 1
  out[size] = ends and 1 or 0
  if ends then
    redis.call('ZADD', tickets, now + lease, name)
    local ttl = lease / 1000
    if redis.call('PTTL', tickets) < ttl + 1 then redis.call('PEXPIRE', tickets, ttl - ttl % 2 + 951) end
    old = {name = name, permits = of + 0, where = where + 0, which = by + 0}
  end
  if kind == 'w' or not ends then kind = 'n' end
end
-- </tickets>
