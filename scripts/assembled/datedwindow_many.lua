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
--        there is one -1 instead, and the key was left as it was (unless Redis refused
--        a command that comes after the first command that writes).
local call = redis.pcall
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- needs:
-- sets: limit offset window
local limit, window, offset = ARGV[2] + 0, ARGV[3] + 0, ARGV[4]
local out, size = {}, 0

local function decide(key, requests)
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
    -- needs: n window allowed used lasts
    -- sets: used lasts
    used = used + allowed * n
    if allowed > 0 then lasts = window end
    -- needs: out size now start lasts allowed before
    -- sets: size
    out[size + 1] = allowed
    out[size + 2] = before
    out[size + 3] = start + lasts - now
    size = size + 3
    change = change or allowed > 0
  until requests == '1' or begin > #requests
  if change then
      -- needs: key now start used longest written margin
      -- sets:
      -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
      -- as 1e+8.
      local ttl = (start + longest - now) / 1000
      if margin > 0 then ttl = math.min(ttl, longest / 1000) end -- the margin is enough for a clock that is behind
      redis.call('SET', key, string.format('%d/%d/%d%s', used, start, longest, written),
        'PX', ttl - ttl % 2 + 3 + margin)
  else
      -- A key that has lost its TTL gets one.
      -- needs: key now state start longest margin
      -- sets:
      local ttl = (start + longest - now) / 1000
      if redis.call('PTTL', key) == -1 then redis.call('SET', key, state, 'PX', ttl - ttl % 2 + 3 + margin) end
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
