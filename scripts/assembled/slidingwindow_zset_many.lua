-- Requests for several keys, decided as if made one after the other. Each key is
-- loaded once and stored once. The blocks of an algorithm's script replace the marked
-- lines; a block whose name has a question mark is optional.
--
-- KEYS   the keys, each once
-- ARGV   [1] unused, then the algorithm's, then for each key its requests: "1" for
--        one request for one permit, otherwise runs "<permits>x<times>" joined by
--        commas; last spare and the caller's clock, if that decides (callersclock.lua)
-- Reply  for each key and run the algorithm's words. The first word is the number of
--        requests allowed; these are the first ones of the run. For a key that failed
--        there is one -1 instead, and the key was left as it was (unless the user
--        may not run a command that comes after the first command that writes).
local call = redis.pcall
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- needs:
-- sets: limit window
local limit, window = ARGV[2] + 0, ARGV[3] + 0
local out, size = {}, 0

local function decide(key, requests)
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
  local change, begin = repair, 1
  repeat
    local n, times = 1, 1
    if requests ~= '1' then
      local _, stop, permits, calls = string.find(requests, '^(%d+)x(%d+)', begin)
      n = permits + 0
      times = calls + 0
      begin = stop + 2
    end
    -- needs: n times limit used
    -- sets: allowed before
    local allowed, before = times, used
    local room = limit - used
    if n * allowed > room then
      allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
    end
    -- needs: n now used newest allowed
    -- sets: used newest
    used = used + allowed * n
    if allowed > 0 then newest = now end
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
    -- needs: out size now newest allowed before wait
    -- sets: size
    out[size + 1] = allowed
    out[size + 2] = newest - now
    out[size + 3] = wait
    out[size + 4] = before
    size = size + 4
    change = change or allowed > 0
  until requests == '1' or begin > #requests
  if change then
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
  else
      -- A denial under a longer window than the one that set the TTL lengthens the TTL:
      -- the state is kept for as long as the reported wait.
      -- needs: key now window recent
      -- sets:
      local ttl = (recent + window - now) / 1000
      if recent > 0 and redis.call('PTTL', key) < ttl then
        redis.call('PEXPIRE', key, ttl - ttl % 2 + 101)
      end
  end
end

local ahead = #ARGV - #KEYS -- ARGV in front of the requests
for i = 1, #KEYS do
  local before = size
  local ok, failed = pcall(decide, KEYS[i], ARGV[ahead + i])
  if not ok or failed then
    for j = before + 2, size do
      out[j] = nil
    end
    size = before + 1
    out[size] = -1
  end
end
return out
