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
-- sets: limit offset window
local limit, window, offset = ARGV[2] + 0, ARGV[3] + 0, ARGV[4]
local out, size = {}, 0
-- The blocks after it use:
--   start, used  the window's start, and the permits taken from it
--   lasts        how long it is for this rule
--   longest      how long it is for the rule with the longest window that has taken from it
--   written      whose clock the start is of, as the state has it
--   margin       what the TTL is longer by, milliseconds
--   repair       the server's clock stepped back: the window starts again, with its count
-- needs: call key mark now offset spare window
-- sets: state start used lasts longest written margin repair
local start, used, lasts, longest, repair = now, 0, window, window, false
local written, margin = mark, spare
if mark == '@' then written = '@' .. spare end
if offset ~= 'first' then
  start = now - (now - offset) % window
end
local state = call('GET', key)
if state then
  if state.err then return state end
  local count, from, theirs, by = string.match(state, '^(%d+)/(%-?%d+)/([1-9]%d*)(@?%d*)$')
  if not count then
    local digits, exponent -- written by fixedwindow.lua: the TTL is its end
    count, digits, exponent = string.match(state, '^(%d+)(%d%d%d%d%d)(%d)$')
    if not count then return {err = 'CORRUPT no state of a fixed window'} end
    by = ''
    theirs = tonumber(digits, 10) * 10 ^ exponent * 1000 -- 10, because miniredis takes a first 0 for octal
    local left = call('PTTL', key)
    if left == -1 then left = theirs / 1000 end
    from = math.min(now, now - now % 1000 + left * 1000 - theirs)
  end
  local age, ends, opens = now - from, math.min(window, theirs), start
  if age < ends then
    start = from + 0
    used = count + 0
    lasts = ends
    longest = math.max(window, theirs)
    if start + longest >= 2 ^ 53 or used >= 2 ^ 53 then return {err = 'CORRUPT no state of a fixed window'} end
    if by ~= '' then
      local longer = tonumber(string.sub(by, 2)) or 2 ^ 53
      if longer > 86400000 then return {err = 'CORRUPT no state of a fixed window'} end -- more than a day
      margin = math.max(spare, longer)
      written = '@' .. margin
    end
    -- The server's clock stepped back, but not just over the start of an aligned window:
    -- if that opened again, it could allow its limit twice.
    if age < 0 and mark == '' and by == '' and (offset == 'first' or start ~= opens + window) then
      start = opens
      repair = true
    end
  end
end
-- needs: n times limit used
-- sets: allowed before
local allowed, before = times, math.max(limit - used, 0)
if n * allowed > before then
  allowed = (before - before % n) / n
end
-- needs: out size now start lasts allowed before
-- sets: size
out[size + 1] = allowed
out[size + 2] = before
out[size + 3] = start + lasts - now
size = size + 3
return out
