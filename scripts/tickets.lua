-- Tickets with a lease, of a bucket or a window: what estimates took comes back when their leases end. These blocks stand
-- beside those of an algorithm's file (internal/scripts/tickets.go), whose load is then "state" and whose store is "write".
-- A limiter without such tickets runs none of this.
--
-- KEYS     behind the key, or all keys, that of the tickets of each
-- State    of the tickets: a sorted set with a member for each, "<permits>/<where>/<which>/<lease>/<id>", whose score is the
--          instant at which the lease ends. where and which are what the block giveback needs
--          A string of few tickets would save a twentieth of an estimate and its settlement, with a second way for each
--          block. Tickets in the state of the key would save less than they seem to: a settlement then always writes the
--          state, and every limiter of the key has to keep them.
-- Words    one more than the algorithm's: microseconds until tickets that end make room for the denied request, 0 if none do

-- <limits>
-- beside has the key of the tickets of each key; and the texts of numbers that many keys of an execution have in common, as
-- a format costs as much as a command. No key has the name of one of these: each has a colon.
-- needs:
-- sets: beside
local keys, beside = #KEYS / 2, {}
for i = 1, keys do
  beside[KEYS[i]] = KEYS[keys + i]
  KEYS[keys + i] = nil -- a second table would cost each key a fifth of a command
end
-- </limits>

-- <load>
-- Gives back what a hundred tickets whose lease has ended have taken, as a settlement by 0 does. The rest counts as taken until
-- later calls. The tickets go first: if a write fails, nothing comes back twice. A settlement that gives back leaves
-- that to others, and while a cancel is decided (operations.lua), call does not ask Redis. The blocks after it use:
--   leases       the key of the tickets
--   outstanding  how many tickets there are, false if none
--   lasting      how long they have to be kept at least, milliseconds
--   first        a ticket of this execution is the only one
--   soon         a word, see seek
-- needs: beside call key now
-- sets: first lasting leases outstanding soon
local leases, outstanding, lasting, soon, first = beside[key], false, 0, 0
if call == redis.pcall and not beside.settles then
  local held = call('ZCARD', leases)
  if held ~= 0 then
    if type(held) == 'table' then return held end
    beside.now = beside.now or string.format('%d', now)
    local over = call('ZCOUNT', leases, '-inf', beside.now) -- a third of what it costs to read the first one
    if type(over) == 'table' then return over end
    if over > 0 then
      local ended = call('ZRANGEBYSCORE', leases, '-inf', beside.now, 'WITHSCORES', 'LIMIT', '0', '100')
      if ended.err then return ended end
      -- <returns/>
      held = redis.call('ZCARD', leases)
    end
  end
  outstanding = held > 0 and held
end
-- <state/>
-- </load>

-- <returns>
-- needs: budget ended leases outstanding
-- sets: budget earliest outstanding
local sums, count, earliest = {}, #ended / 2, 2 ^ 53 -- of those that can come back together
for i = 1, #ended, 2 do
  local permits, place, which = string.match(ended[i], '^(%d+)/(%d+/(%d+))/')
  if not permits then return {err = 'CORRUPT no tickets'} end
  if which == '1' then place = string.format('%s/%s/%d', place, ended[i + 1], i) end
  -- <together?/>
  sums[place] = (sums[place] or 0) + permits
  budget = budget - 2
end
redis.call('ZREMRANGEBYRANK', leases, '0', count - 1)
outstanding = false
for place, back in pairs(sums) do
  local where, which, stops = string.match(place, '^(%d+)/(%d+)/?(%d*)')
  budget = budget - 8
  -- <state/>
  -- <exactly?/>
  -- <giveback/>
end
-- </returns>

-- <returns of log>
-- One pass over the last 512 entries at most, which takes 1 to 2 µs each; what is in earlier entries stays, see giveback.
-- needs: budget call corrupt ended era exists gone instant key leases present rule said slack
-- sets: budget oldest
local sums, oldest = {}, 2 ^ 53
for i = 1, #ended, 2 do
  local permits, place, where = string.match(ended[i], '^(%d+)/((%d+)/%d+)/')
  if not permits then return {err = 'CORRUPT no tickets'} end
  sums[place] = (sums[place] or 0) + permits
  oldest = math.min(oldest, where + 0)
  budget = budget - 2
end
redis.call('ZREMRANGEBYRANK', leases, '0', #ended / 2 - 1)
do
  local back = true
  -- <ended/>
  local count, whole, latest = 3, false, {}
  while exists do -- the last entries, and the total before them
    latest = call('LRANGE', key, -2 * count - 1, '-1')
    if #latest <= 2 * count then -- the whole log, with the rule
      if #latest < 4 or #latest % 2 == 1 then return {err = corrupt} end
      table.remove(latest, 1)
      whole = true
      break
    end
    -- Not "<=": if all that was read comes back, what is in front of it has to be known.
    if count == 512 or tonumber(latest[2]) < oldest then break end
    count = math.min(count * 8, 512)
  end
  budget = budget - #latest / 2
  -- From the first entry of a ticket on, the totals are less by what has come back.
  local from, given, rest, stays = nil, 0, {}, false
  local again = string.format('/%d', era)
  for i = 2, #latest, 2 do
    local own = latest[i + 1] - latest[i - 1]
    local here = math.min(sums[latest[i] .. (latest[i] + 0 > era and '/0' or again)] or 0, own)
    given = given + here
    if here > 0 then from = from or i end
    stays = i == #latest - 1 and here > 0 and here == own and string.find(said, '@', 1, true)
    if from and (here == 0 or here < own or stays) then
      rest[#rest + 1] = latest[i]
      rest[#rest + 1] = string.format('%d', latest[i + 1] - given)
    end
  end
  if from then
    if stays then redis.call('LSET', key, '0', said .. '!') end
    if #rest == 0 and whole and from == 2 then
      redis.call('UNLINK', key)
    else
      redis.call('LSET', key, '-1', latest[#latest]) -- if the server is out of memory, this fails, before anything has changed
      redis.call('LTRIM', key, '0', from - #latest - 2)
      for i = 1, #rest, 1000 do
        redis.call('RPUSH', key, unpack(rest, i, math.min(i + 999, #rest)))
      end
      local newer = tonumber(rest[#rest - 1] or latest[from - 2]) -- the last entry now
      if newer and newer < instant and said == rule and not stays then
        local ttl = math.max(gone - instant + newer - present, 0) / 1000
        redis.call('PEXPIRE', key, ttl - ttl % 2 + 901 + slack)
      end
    end
  end
end
-- </returns of log>

-- <seek>
-- When tickets that end make room for the first denied request: the least of max(ends, fits) for those that end first, where
-- fits is when it fits once their permits are back. If 256 do not say so, the call asks again when the last of them ends.
-- After the server's clock stepped back, no lease ends later than one that begins now.
-- needs: allowed budget call leases now outstanding soon times
-- sets: budget soon
soon = 0
if allowed < times and outstanding then
  local back, ends, fits, from, least = 0, 0, 2 ^ 53, 0, 2 ^ 53
  while from < 256 and ends < least do
    local some = call('ZRANGE', leases, from, from + 15, 'WITHSCORES')
    if some.err then return some end
    for i = 1, #some, 2 do
      local permits, where, which, lease = string.match(some[i], '^(%d+)/(%d+)/(%d+)/(%d+)/')
      if not permits then return {err = 'CORRUPT no tickets'} end
      ends = math.max(some[i + 1] - now, 1)
      if ends > lease + 0 then
        ends = lease + 0
        redis.call('ZADD', leases, now + ends, some[i])
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

-- <seek of log>
-- When enough permits have left each window or come back: the first instant at which the permits of entries that have left,
-- and of tickets that have ended and whose entries have not left, reach what is over. That sum never falls. Of more than 256
-- tickets the call asks again when the last of these ends.
-- needs: allowed budget call corrupt era exists key last leases now outstanding recent slot soon stored times
-- sets: budget soon
soon = 0
if allowed < times and outstanding and exists then
  local some = call('ZRANGE', leases, '0', '255', 'WITHSCORES')
  if some.err then return some end
  local final, tickets, ends, places = last, {}, {}, {}
  if not final then final = call('LLEN', key) / 2 - 1 end
  -- The instant and the total of an entry; false if there are none.
  local function entry(i)
    budget = budget - 4
    if i >= final then return recent, stored end
    local pair = call('LRANGE', key, 2 * i, 2 * i + 1)
    return tonumber(pair[1]) or false, tonumber(pair[2]) or false
  end
  local far = 0 -- permits before that do not come back, see giveback
  if final > 510 then far = entry(final - 510) or 0 end
  for i = 1, #some, 2 do
    local permits, where, which, lease = string.match(some[i], '^(%d+)/(%d+)/(%d+)/(%d+)/')
    if not permits then return {err = 'CORRUPT no tickets'} end
    local at = math.max(some[i + 1] - now, 1)
    if at > lease + 0 then
      at = lease + 0
      redis.call('ZADD', leases, now + at, some[i])
    end
    if where + 0 >= far and where + 0 <= recent and which + 0 == (where + 0 > era and 0 or era) then
      tickets[#tickets + 1] = permits + 0
      ends[#tickets] = at
      places[#tickets] = where + 0
    end
    budget = budget - 2
  end
  -- So many permits of the first tickets come back that have not left by an edge.
  local function freed(first, edge)
    local sum = 0
    for i = 1, first do
      if places[i] > edge then sum = sum + tickets[i] end
    end
    return sum
  end
  -- The last entry from low to high that is not after the edge, and its total. Entry low is not.
  local function leaving(edge, low, sum, high)
    while low < high do
      local middle = math.ceil((low + high) / 2)
      local at, upto = entry(middle)
      if not (at and upto) then return end
      if at <= edge then
        low = middle
        sum = upto
      else
        high = middle - 1
      end
    end
    return low, sum
  end
  local failed = false
  local function when(over, span, low, base)
    local from, sum, to = low, base, #tickets + 1
    -- The first ticket whose end makes room, by halves, is number to; before it has left all up to entry from.
    local high, first = final, 1
    while first < to do
      local middle = math.floor((first + to) / 2)
      local edge = now + ends[middle] - span
      local number, upto = leaving(edge, from, sum, high)
      if not number then
        failed = true
        return 0
      end
      if upto - base + freed(middle, edge) >= over then
        to = middle
        high = number
      else
        first = middle + 1
        from = number
        sum = upto
      end
    end
    local before = to - 1
    -- The first entry behind it whose leaving makes room, with the tickets before.
    local top, below = high + 1, from
    while top - below > 1 do
      local middle = math.floor((below + top) / 2)
      local at, upto = entry(middle)
      if not (at and upto) then
        failed = true
        return 0
      end
      if upto - base + freed(before, at) >= over then top = middle else below = middle end
    end
    local leaves = ends[to] or slot + span - now
    if top <= high then leaves = entry(top) + span - now end
    if #some == 512 and before == #tickets then leaves = math.min(leaves, some[512] - now) end
    return math.max(leaves, 1)
  end
  -- <rules/>
  if failed then return {err = corrupt} end
end
-- </seek of log>

-- <rules of slidingwindow_list>
-- needs: allowed left limit n soon under used when window
-- sets: soon
soon = when(used + (allowed + 1) * n - limit, window, left, under)
-- </rules of slidingwindow_list>

-- <rules of slidinglog>
-- needs: allowed bases left limits n rules soon total when windows
-- sets: soon
for r = 1, rules do
  local over = total - bases[r] + (allowed + 1) * n - limits[r]
  if over > 0 then soon = math.max(soon, when(over, windows[r], left[r], bases[r])) end
end
-- </rules of slidinglog>

-- <frees of bucket>
-- In units, because exact returns are. What another rule's state gives back is not known to the microsecond, nor what comes
-- back while permits are promised or leased: then the call asks again when a ticket ends.
-- needs: allowed back capacity cost ends fits flow lag missing permit permits present rule theirs where which writes
-- sets: back fits
local gain = permits * permit
if which == '1' then gain = math.max(gain - (present + ends - where) * flow, 0) end
back = back + gain
fits = 0
if not theirs and writes == rule then
  local over = missing + (allowed + 1) * cost - back - capacity
  if over > 0 then fits = lag + (over + -over % flow) / flow end
end
-- </frees of bucket>

-- <together of bucket>
-- Without exact returns, all come back as if taken with the first of them: slices may have to know (spare).
-- needs: earliest place which
-- sets: earliest
if which == '0' then
  earliest = math.min(earliest, string.match(place, '^%d+'))
  place = '0/0'
end
-- </together of bucket>

-- <exactly of bucket>
-- With exact returns, as much as came back at the end, or when the state was written last.
-- needs: earliest now present state stops where which
-- sets: where
if which == '0' then where = earliest end
if which == '1' and state then
  local from = math.max(stops, tonumber(string.sub(state, 1, 16), 10) or now)
  where = where + math.max(present - from, 0)
end
-- </exactly of bucket>

-- <frees of datedwindow>
-- needs: allowed back fits limit n permits start used where window
-- sets: back fits
if math.abs(start - where) < math.min(window, 2000) then back = back + permits end
if used + (allowed + 1) * n - math.min(back, used) <= limit then fits = 0 end
-- </frees of datedwindow>

-- <frees of calendarwindow>
-- needs: allowed back closes fits keep limit n permits used where
-- sets: back fits
if where + 0 == closes and keep >= closes then back = back + permits end
if used + (allowed + 1) * n - math.min(back, used) <= limit then fits = 0 end
-- </frees of calendarwindow>

-- <soon>
-- Behind the words of the algorithm.
-- needs: out size soon
-- sets: size
out[size + 1] = soon
size = size + 1
-- </soon>

-- <keep>
-- Behind the store, which has just set ttl: tickets are kept for as long as their permits can count, and for their leases.
-- needs: beside first lasting leases margin outstanding ttl
-- sets:
if outstanding then
  ttl = math.max(ttl + margin, lasting) + 4
  if first or redis.call('PTTL', leases) < ttl then
    if ttl ~= beside.ttl then
      beside.ttl = ttl
      beside.text = string.format('%d', ttl + 950)
    end
    redis.call('PEXPIRE', leases, beside.text)
  end
end
-- </keep>

-- <full>
-- Behind fit: one key has at most ten thousand tickets.
-- needs: allowed fresh outstanding
-- sets: allowed full
local full = fresh and allowed > 0 and outstanding and outstanding >= 10000
if full then allowed = 0 end
-- </full>

-- <full of log>
-- needs: allowed era fresh old outstanding slot
-- sets: allowed full
local another = fresh or slot ~= old.where or old.which ~= (slot > era and 0 or era)
local full = another and allowed > 0 and outstanding and outstanding >= 10000
if full then allowed = 0 end
-- </full of log>

-- <begin>
-- Behind ticket, whose words it makes those of the ticket's name; the second is -1 if there are too many tickets. how says
-- what giveback needs: '0' the words, '1' the instant, for exact returns, '2' the instant if slices are out, '3' the words, of a
-- log. old is the ticket that takes more: they become one, unless the old one's window is over, or it is of another entry of a
-- log: then both stay.
-- needs: allowed beside first full how id lasting lease leases now old out outstanding permits size
-- sets: first lasting outstanding
if allowed > 0 then
  local where, which, total = out[size + 1], out[size + 2], permits
  if how == '1' then which = 1 end
  if old then
    if how == '1' or how == '2' then where = old.where end
    local joins = where == old.where and which == old.which
    if joins then total = total + old.permits end
    if joins or how ~= '3' then redis.call('ZREM', leases, old.name) end
  end
  out[size + 1] = where
  out[size + 2] = which
  -- A number costs Redis more than its text, and a format more than to join texts, of which most keys of an execution have two in
  -- common; total has less than 14 digits.
  if lease ~= beside.lease then
    beside.lease = lease
    beside.ends = string.format('%d', now + lease)
    beside.where = nil
  end
  if where ~= beside.where or which ~= beside.which then
    beside.where = where
    beside.which = which
    beside.place = string.format('/%d/%d/%s/', where, which, lease)
  end
  redis.call('ZADD', leases, beside.ends, total .. beside.place .. id)
  first = first or not outstanding
  outstanding = true
  lasting = lease / 1000
elseif full then
  out[size + 2] = -1
end
-- </begin>

-- <tickets>
-- In front of load, of an operation on one ticket: finds it before those are given back whose lease has ended, so that its
-- permits stay its own until another call needs them.
-- needs: amount back beside call key kind now operations out permits size stop which
-- sets: amount back fresh how id kind lease old permits size stop tickets which
local tickets, fresh, old, lease, how, id = beside[key], kind == 'a'
beside.settles = false
if fresh then
  how = amount
  lease = which
  id, stop = string.match(operations, '^/(%w+),?()', stop)
elseif kind == 'u' then
  local of, ends = which, string.find(operations, ',', stop, true) or #operations + 1
  local where, by = string.match(operations, '^/(%d+)/(%d+)/', stop)
  if not by then return {err = 'ERR no operation'} end
  local found = call('ZREM', tickets, string.sub(operations, stop - #of, ends - 1))
  if found ~= 1 and found ~= 0 then return found end
  stop = ends + 1
  local more = permits - found * of
  size = size + 1
  if found == 1 and more < 0 then
    out[size] = 1
    beside.settles = true
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
    beside.settles = true
  end
elseif kind == 'w' or kind == 'm' then
  local of, rest, where, by, span, own, further =
    which, string.match(operations, '^(/(%d+)/(%d+)/(%d+)/(%w+)),?()', stop)
  local name = of .. rest
  how = amount
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
