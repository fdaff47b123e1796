-- Fixed window that stores its start, for the caller's clock, or for windows that
-- start at given times.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] limit; [3] window, microseconds; [4] offset of the
--          windows from 1970, microseconds, or "first" for windows that open with
--          their first permit; last the caller's clock, microseconds, if that
--          decides
-- State    "<permits used>@<start, microseconds>"
-- Reply    the words of a run
-- Words    requests allowed, permits left before the run, microseconds left of the
--          window
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
-- sets: limit window offset
local limit, window, offset = ARGV[2] + 0, ARGV[3] + 0, ARGV[4]
-- </config>

-- <load>
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
-- </load>

-- <fit>
-- needs: n times limit used
-- sets: allowed before
local allowed, before = times, math.max(limit - used, 0)
if n * allowed > before then
  allowed = (before - before % n) / n
end
-- </fit>

-- <take>
-- needs: n allowed used
-- sets: used
used = used + allowed * n
-- </take>

if allowed > 0 or repair then
  -- <store>
  -- needs: key now window start used
  -- sets:
  -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
  -- as 1e+8.
  local ttl = (start + window - now) / 1000
  redis.call('SET', key, string.format('%d@%d', used, start), 'PX', ttl - ttl % 2 + 3)
  -- </store>
else
  -- <expire>
  -- A denial under a longer window than the one that set the TTL lengthens the TTL.
  -- needs: key now window state start used
  -- sets:
  local ttl = (start + window - now) / 1000
  if state and redis.call('PTTL', key) < ttl - 1 then
    redis.call('SET', key, string.format('%d@%d', used, start), 'PX', ttl - ttl % 2 + 3)
  end
  -- </expire>
end

-- <answer>
-- needs: now window start allowed before
-- sets:
return {allowed, before, start + window - now}
-- </answer>

--[[ In place of the answer when a run of requests is decided:
-- <words>
-- needs: out size now window start allowed before
-- sets: size
out[size + 1] = allowed
out[size + 2] = before
out[size + 3] = start + window - now
size = size + 3
-- </words>
]]
