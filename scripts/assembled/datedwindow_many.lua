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
-- sets: limit window offset
local limit, window, offset = ARGV[2] + 0, ARGV[3] + 0, ARGV[4]
local out, size = {}, 0

local function decide(key, requests)
  -- needs: call key now window offset
  -- sets: state start used repair
  local start, used, repair = now, 0, false
  if offset ~= 'first' then
    start = now - (now - offset) % window
  end
  local state = call('GET', key)
  if state then
    if state.err then return state end
    local count, at = string.match(state, '^(%d+)@(%d+)$')
    if not at then
      count = string.match(state, '^(%d+)%d%d%d%d%d%d$') -- written by fixedwindow.lua
      if not count then return {err = 'CORRUPT no state of a fixed window'} end
      used = count + 0
    elseif now < at + 0 then -- the clock stepped back
      used = count + 0
      if offset ~= 'first' and at + 0 == start + window then
        start = at + 0 -- back over the start: opened again, it could allow its limit twice
      else
        repair = true
      end
    elseif now - at < window then -- the window goes on to its end, even if the alignment changed
      start = at + 0
      used = count + 0
    end
  end
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
    local allowed, before = times, math.max(limit - used, 0)
    if n * allowed > before then
      allowed = (before - before % n) / n
    end
    -- needs: n allowed used
    -- sets: used
    used = used + allowed * n
    -- needs: out size now window start allowed before
    -- sets: size
    out[size + 1] = allowed
    out[size + 2] = before
    out[size + 3] = start + window - now
    size = size + 3
    change = change or allowed > 0
  until requests == '1' or begin > #requests
  if change then
      -- needs: key now window start used
      -- sets:
      -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
      -- as 1e+8.
      local ttl = (start + window - now) / 1000
      redis.call('SET', key, string.format('%d@%d', used, start), 'PX', ttl - ttl % 2 + 3)
  else
      -- A denial under a longer window than the one that set the TTL lengthens the TTL.
      -- needs: key now window state start used
      -- sets:
      local ttl = (start + window - now) / 1000
      if state and redis.call('PTTL', key) < ttl - 1 then
        redis.call('SET', key, string.format('%d@%d', used, start), 'PX', ttl - ttl % 2 + 3)
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
