-- Looks at a key for one request for one permit: takes nothing and writes nothing.
-- KEYS and ARGV are those of the algorithm's script, whose blocks replace the marked
-- lines. The reply is the words of a run of one request, before it has taken anything.
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- needs:
-- sets: limit window offset
local limit, window, offset = ARGV[2] + 0, ARGV[3] + 0, ARGV[4]
local out, size = {}, 0
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
-- needs: n times limit used
-- sets: allowed before
local allowed, before = times, math.max(limit - used, 0)
if n * allowed > before then
  allowed = (before - before % n) / n
end
-- needs: out size now window start allowed before
-- sets: size
out[size + 1] = allowed
out[size + 2] = before
out[size + 3] = start + window - now
size = size + 3
return out
