-- Sliding window with a member for every permit, scored by the instant, in
-- microseconds, at which it was taken.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] limit; [3] window, microseconds; last the caller's
--          clock, microseconds, if that decides
-- State    members "<instant>:<number within the instant>"
-- Reply    the words of a run
-- Words    requests allowed; microseconds from now to the last instant at which a
--          permit was taken, this run's included; microseconds until the first denied
--          request fits; permits used before the run
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall

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
-- stored is how many permits of the window the key holds, recent is the instant of
-- the last one.
-- needs: call key now window
-- sets: edge used stored recent newest repair
local edge = string.format('%d', now - window)
local used = call('ZCOUNT', key, '(' .. edge, '+inf')
if type(used) == 'table' then return used end
local stored, recent, repair = used, 0, false
if used > 0 then
  recent = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2] + 0
  if recent > now then -- the clock stepped back: permits with later instants count from now
    recent = now
    repair = true
  end
end
local newest = recent
-- </load>

-- <fit>
-- needs: n times limit used
-- sets: allowed before
local allowed, before = times, used
local room = limit - used
if n * allowed > room then
  allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
end
-- </fit>

-- <take>
-- needs: n now used newest allowed
-- sets: used newest
used = used + allowed * n
if allowed > 0 then newest = now end
-- </take>

-- <wait>
-- needs: call key n times now limit window used stored allowed
-- sets: wait
local wait = 0
if allowed < times then
  local over, leaves = used + n - limit, now -- so many permits have to leave
  if over <= stored then
    local rank = call('ZCARD', key) - stored + over - 1
    leaves = call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + 0
    if leaves > now then leaves = now end
  end
  wait = leaves + window - now
end
-- </wait>

if allowed > 0 or repair then
  -- <store>
  -- needs: key now window edge used stored recent repair
  -- sets:
  local at = string.format('%d', now)
  if repair then
    local later = redis.call('ZRANGEBYSCORE', key, '(' .. at, '+inf')
    for i = 1, #later do
      redis.call('ZADD', key, at, later[i])
    end
  end
  local missing, number = used - stored, 0
  if recent == now then number = redis.call('ZCOUNT', key, at, at) end
  while missing > 0 do -- again, if a clock that stepped back has left members of the same name
    local members = {}
    for i = 1, math.min(missing, 1000) do
      number = number + 1
      members[2 * i - 1] = at
      members[2 * i] = at .. ':' .. number
    end
    missing = missing - redis.call('ZADD', key, 'NX', unpack(members))
  end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', edge)
  -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
  -- as 1e+8.
  local ttl = window / 1000
  redis.call('PEXPIRE', key, ttl - ttl % 2 + 101)
  -- </store>
else
  -- <expire>
  -- A denial under a longer window than the one that set the TTL lengthens the TTL:
  -- the state is kept for as long as the reported wait.
  -- needs: key now window recent
  -- sets:
  local ttl = (recent + window - now) / 1000
  if recent > 0 and redis.call('PTTL', key) < ttl then
    redis.call('PEXPIRE', key, ttl - ttl % 2 + 101)
  end
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
]]
