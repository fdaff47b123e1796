-- Sliding window with a member for every permit, scored by the instant, in
-- microseconds, at which it was taken.
--
-- A window that is shorter than another rule's keeps the permits which the longer one
-- still needs, until the last permit taken by the longer rule has left its window. So
-- the name of the last permit says which windows other rules still need.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] limit; [3] window, microseconds; last spare and the
--          caller's clock, if that decides (callersclock.lua)
-- State    members "<number>/<window>[@][+<longer window>/<until>]…". The number has ten
--          digits and counts up, so that of one instant the last name is the latest; at a
--          later instant it begins again, once the half of all numbers is used.
--          The window is that of the rule which took the permit, the @ says that its
--          instant is one of a caller's clock, and the rest is which longer windows are
--          needed until when. A "!" behind it: this permit was given back, and its name
--          stays, as the last one, because the callers' clocks may be apart
-- Reply    the words of a run
-- Words    requests allowed; microseconds from now to the last instant at which a
--          permit was taken, this run's included; microseconds until the first denied
--          request fits; permits used before the run
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall
local budget = 0 -- of an execution for many requests, see many.lua

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

-- <config>
-- needs:
-- sets: limit window
local limit, window = ARGV[2] + 0, ARGV[3] + 0
-- </config>

-- <load>
-- The blocks after it use:
--   at              the instant of the decision: now, or the last permit's if a clock is ahead
--   edge            permits up to this instant have left the window
--   used, stored    permits in the window; those in the key
--   newest          instant at which the last permit counts as taken
--   number, rule    the last permit's number; the rest of a name
--   longest, ends   the longest window that has to be kept; until when the key is needed
--   ended           nobody needs the permits that are in the key any more
--   foreign         the last permit is of another rule, or of a clock that is ahead
--   repair          the server's clock stepped back
--   returned        1 if the last permit was given back
-- needs: call key mark now window
-- sets: at ends foreign last longest newest number ended repair returned rule stored used
local at, used, newest, ends, repair, returned, ended = now, 0, 0, 0, false, 0, false
local rule, longest, number, foreign = '/' .. ARGV[3] .. mark, window, 1000000000, false
local edge = string.format('%d', now - window)
local last = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
if last.err then return last end
if last[1] then
  local recent = last[2] + 0
  newest = recent
  ends = recent + window
  number = tonumber(string.sub(last[1], 1, 10))
  foreign = recent > now or recent < 0 or not number or string.sub(last[1], 11) ~= rule
  if foreign then
    local theirs, kind, others = string.match(last[1], '^[1-9]%d%d%d%d%d%d%d%d%d/(%d+)(@?)(.*)$')
    if not theirs or recent < 0 or recent + theirs >= 2 ^ 53 then
      return {err = 'CORRUPT no state of a sliding window in a sorted set'}
    end
    local step = 0
    if recent > now and (mark == '@' or kind == '@') then -- behind the clock that dated the permit
      at = recent
      rule = '/' .. ARGV[3] .. kind
    end
    -- <rewind>
    -- The server's clock stepped back: permits with later instants count from now.
    -- needs: now at newest recent repair step
    -- sets: newest repair step
    if recent > at then
      repair = true
      step = recent - now
      newest = now
    end
    -- </rewind>
    others = '+' .. theirs .. '/' .. string.format('%d', recent + theirs) .. others
    ends = 0
    for width, final in string.gmatch(others, '%+(%d+)/(%d+)') do
      final = final - step
      if final > ends then ends = final end
      if width + 0 > window and final > at then
        rule = rule .. '+' .. width .. '/' .. string.format('%d', final)
        longest = math.max(longest, width + 0)
      end
    end
    if ends >= 2 ^ 53 then return {err = 'CORRUPT no state of a sliding window in a sorted set'} end
    newest = math.min(newest, ends - window) -- when the key expires, its permits are forgotten
    edge = string.format('%d', ends > at and at - window or recent)
    if string.sub(last[1], -1) == '!' then returned = 1 end
  end
  ended = ends <= at
  -- The numbers begin again before they have another digit, and at an instant of their own.
  if number >= 5000000000 and recent < at then number = 1000000000 end
  used = call('ZCOUNT', key, '(' .. edge, '+inf')
  if used > 0 then used = used - returned end
end
local stored = used
-- </load>

-- <fit>
-- needs: n times limit used
-- sets: allowed before room
local allowed, before = times, used
local room = limit - used
if n * allowed > room then
  allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
end
-- </fit>

-- <seek>
-- Computes when the permit leaves the window that makes room. It is one of this execution
-- if the stored ones are not enough.
-- needs: allowed at call key limit n newest now returned stored times used window
-- sets: wait
local wait = 0
if allowed < times then
  local over, leaves = used + (allowed + 1) * n - limit, newest -- so many permits have to leave
  if allowed > 0 then leaves = at end
  if over <= stored then
    local rank = over - stored - 1 - returned -- from the end
    leaves = math.min(call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + 0, leaves)
  end
  wait = leaves + window - now
end
-- </seek>

-- <take>
-- needs: n at used newest allowed
-- sets: used newest
used = used + allowed * n
if allowed > 0 then newest = at end
-- </take>

if allowed > 0 or repair then
  -- <store>
  -- needs: at budget ended ends foreign key longest now number repair returned rule spare stored used window
  -- sets: budget number
  local score, missing = string.format('%d', at), used - stored
  if ended then redis.call('UNLINK', key) end
  if repair then
    local later = redis.call('ZRANGEBYSCORE', key, '(' .. score, '+inf')
    budget = budget - #later
    for first = 1, #later, 1000 do
      local members = {}
      for i = first, math.min(first + 999, #later) do
        members[#members + 1] = score
        members[#members + 1] = later[i]
      end
      redis.call('ZADD', key, unpack(members))
    end
    missing = missing + 1 -- the last permit gets another name
  end
  for first = 1, missing, 1000 do
    local members = {}
    for i = 1, math.min(missing - first + 1, 1000) do
      number = number + 1
      members[2 * i - 1] = score
      members[2 * i] = number .. rule
    end
    redis.call('ZADD', key, unpack(members))
  end
  if repair or returned == 1 and not ended then redis.call('ZREMRANGEBYRANK', key, -missing - 1, -missing - 1) end
  -- What has left the windows is removed: at most 500 permits, and two for each one that
  -- is taken, so that what remains for the next calls does not grow.
  local kept = used
  if longest > window then -- no limit is above 10,000
    kept = math.min(redis.call('ZCOUNT', key, '(' .. string.format('%d', at - longest), '+inf'), 10000)
  end
  local left = redis.call('ZCARD', key) - kept
  if left > 0 then
    if left > 100 then
      left = math.min(left, 500 + 2 * missing)
      budget = budget - left / 2
    end
    redis.call('ZREMRANGEBYRANK', key, '0', left - 1)
  end
  -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
  -- as 1e+8.
  local ttl, old = window / 1000, -1
  if foreign then
    ttl = (math.max(ends, at + window) - now) / 1000
    if not repair then old = redis.call('PTTL', key) end
  end
  if old < ttl + spare then redis.call('PEXPIRE', key, ttl - ttl % 2 + 101 + spare) end
  -- </store>
else
  -- <expire>
  -- A key that has lost its TTL gets one.
  -- needs: key now spare ends
  -- sets:
  local ttl = (ends - now) / 1000
  if redis.call('PTTL', key) == -1 then redis.call('PEXPIRE', key, ttl - ttl % 2 + 101 + spare) end
  -- </expire>
end

-- <answer>
-- needs: now newest allowed before wait
-- sets:
return {allowed, newest - now, wait, before}
-- </answer>

--[[ In place of the answer when a run of requests is decided:
-- <words>
-- needs: out size now newest allowed before wait
-- sets: size
out[size + 1] = allowed
out[size + 2] = newest - now
out[size + 3] = wait
out[size + 4] = before
size = size + 4
-- </words>
-- <charge>
-- After fit: as many requests as the debt has room for. A member is a permit, and takes memory.
-- needs: allowed n room times used
-- sets: allowed
room = 20000 - used
allowed = times
if n * allowed > room then allowed = math.max((room - room % n) / n, 0) end
-- </charge>
-- <ticket>
-- The members' score, and the number that the store gives the last one.
-- needs: out size at number used stored repair
-- sets:
out[size + 1] = at
out[size + 2] = number + used - stored
if repair then out[size + 2] = out[size + 2] + 1 end -- the last permit gets another name
-- </ticket>
-- <giveback>
-- which is the number of the ticket's first member. Members of one instant are in the order of
-- their numbers, so two searches find the ticket's.
-- The name of the last permit stays for as long as callers' clocks may be apart: without its
-- instant, a clock that is behind would find the window of that time unused again.
-- needs: at back budget call key last longest mark now returned spare where which window
-- sets: budget given
local rank, low = nil, call('ZCOUNT', key, '-inf', '(' .. where)
local behind = low + call('ZCOUNT', key, where, where)
for goal = which + 0, which + back, back do -- the rank of the first one, and that behind the last
  local high = behind
  rank = low
  while low < high do
    local middle = math.floor((low + high) / 2)
    local number = tonumber(string.sub(call('ZRANGE', key, middle, middle)[1], 1, 10))
    if number and number < goal then low = middle + 1 else high = middle end
    budget = budget - 1
  end
end
local given, latest = low - rank, false
if given > 0 then
  latest = call('ZRANGE', key, low - 1, low - 1)[1] == last[1]
  if latest then given = given - returned end -- which is the last one
end
if given > 0 then
  local stays = latest and returned == 0 and string.find(last[1], '@', 1, true)
  if stays then redis.call('ZADD', key, where, last[1] .. '!') end
  redis.call('ZREMRANGEBYRANK', key, rank, rank + given - 1)
  budget = budget - given / 2
  -- An instant that stays before other permits keeps its TTL: other rules count from it when
  -- the state ends.
  local ttl
  if stays or returned == 1 then
    if call('ZCOUNT', key, '(' .. string.format('%d', at - longest), '+inf') == 1 then ttl = (at - now) / 1000 end
  else
    local top = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
    if top[1] and top[2] + 0 < where + 0 and (string.sub(top[1], 11) == '/' .. ARGV[3] .. mark or top[2] + longest <= at) then
      ttl = math.max(top[2] + window - now, 0) / 1000
    end
  end
  if ttl then redis.call('PEXPIRE', key, ttl - ttl % 2 + 101 + spare) end
end
-- </giveback>
]]
