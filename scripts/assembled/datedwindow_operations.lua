-- Operations on several keys, decided as if made one after the other. The blocks of an
-- algorithm's script replace the marked lines; a block whose name has a question mark is
-- optional. A list of requests only is decided by many.lua, which does the same.
--
-- KEYS   the keys, each once
-- ARGV   [1] unused, then the algorithm's, then for each key its operations, joined by
--        commas; last spare and the caller's clock, if that decides (callersclock.lua):
--          <permits>x<times>          so many equal requests
--          <permits>e<times>          the same, and where the permits are: a ticket
--          <permits>c<times>          charges: taken whether they fit or not, as a debt, which
--                                     is repaid before anybody is allowed again
--          <permits>g<where>/<which>  give back what a ticket stands for
-- Reply  for each key and operation:
--          x, c  the algorithm's words of a run. The first word is the number of requests
--                allowed, or charged: these are the first ones of the run
--          e     the same, and the two words of a ticket of the last request allowed
--          g     the permits given back, rounded up
--        If a key fails, one -1 comes in place of all that was not done: the key is as it
--        was before that (unless the user may not run a command that comes after the
--        first command that writes). Of an operation on its own, which has a script
--        without the function and the loops around it, the error is the reply.
local call = redis.pcall
-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- <config>
-- needs:
-- sets: limit offset window
local limit, window, offset = ARGV[2] + 0, ARGV[3] + 0, ARGV[4]
local out, size = {}, 0
local done = 0

-- A give back writes on its own, so it is loaded on its own, and so are reservations and cancels;
-- the operations up to the next such one are loaded once and stored once.
local function decide(key, operations)
  local begin = 1
  local permits, kind, amount, which, stop = string.match(operations, '^(%d+)(%a)(%d*)/?(%d*),?()')
  repeat
    if not kind then return {err = 'ERR no operation'} end
    local back = kind == 'g' and permits + 0
    -- <load>
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
    if back then
      local where = amount
      -- <giveback>
      -- By callers' clocks, a window that is unused again stays for as long as their skew: otherwise
      -- a clock that is behind would begin the window before it again.
      -- needs: key back start used longest written margin where
      -- sets: given used
      local given = 0
      if start == where + 0 then given = math.min(back, used) end
      if given > 0 and given == used then
        if written == '' then
          redis.call('UNLINK', key)
        else
          redis.call('SET', key, string.format('0/%d/%d%s', start, longest, written), 'PX', string.format('%d', margin + 3))
        end
      elseif given > 0 then
        used = used - given
        -- <store>
          -- needs: key now start used longest written margin
          -- sets:
          -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
          -- as 1e+8.
          local ttl = (start + longest - now) / 1000
          if margin > 0 then ttl = math.min(ttl, longest / 1000) end -- the margin is enough for a clock that is behind
          redis.call('SET', key, string.format('%d/%d/%d%s', used, start, longest, written),
            'PX', ttl - ttl % 2 + 3 + margin)
      end
      size = size + 1
      out[size] = given
    else
      local change = repair
      repeat
        local n, times = permits + 0, amount + 0
        -- <fit>
        -- needs: n times limit used
        -- sets: allowed before
        local allowed, before = times, math.max(limit - used, 0)
        if n * allowed > before then
          allowed = (before - before % n) / n
        end
        if kind == 'c' then
          -- <charge>
          -- After fit: as many requests as the debt has room for.
          -- needs: n times used allowed
          -- sets: allowed
          local room = 4e9 - used
          allowed = times
          if n * allowed > room then allowed = math.max((room - room % n) / n, 0) end
        end
        -- <take>
        -- needs: n window allowed used lasts
        -- sets: used lasts
        used = used + allowed * n
        if allowed > 0 then lasts = window end
        -- <words>
        -- needs: out size now start lasts allowed before
        -- sets: size
        out[size + 1] = allowed
        out[size + 2] = before
        out[size + 3] = start + lasts - now
        size = size + 3
        if kind == 'e' then
          -- <ticket>
          -- The window's start.
          -- needs: out size start
          -- sets:
          out[size + 1] = start
          out[size + 2] = 0
          size = size + 2
        end
        change = change or allowed > 0
        begin = stop
        permits, kind, amount, stop = string.match(operations, '^(%d+)([xec])(%d+),?()', begin)
      until not kind
      if change then
        -- <store>
          -- needs: key now start used longest written margin
          -- sets:
          -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
          -- as 1e+8.
          local ttl = (start + longest - now) / 1000
          if margin > 0 then ttl = math.min(ttl, longest / 1000) end -- the margin is enough for a clock that is behind
          redis.call('SET', key, string.format('%d/%d/%d%s', used, start, longest, written),
            'PX', ttl - ttl % 2 + 3 + margin)
      else
        -- <expire>
          -- A key that has lost its TTL gets one.
          -- needs: key now state start longest margin
          -- sets:
          local ttl = (start + longest - now) / 1000
          if redis.call('PTTL', key) == -1 then redis.call('SET', key, state, 'PX', ttl - ttl % 2 + 3 + margin) end
      end
      stop = begin
    end
    done = size
    begin = stop
    if begin <= #operations then
      permits, kind, amount, which, stop = string.match(operations, '^(%d+)(%a)(%d*)/?(%d*),?()', begin)
    end
  until begin > #operations
end

local ahead = #ARGV - #KEYS -- ARGV in front of the operations
for i = 1, #KEYS do
  local ok, failed = pcall(decide, KEYS[i], ARGV[ahead + i])
  if not ok or failed then
    for j = done + 2, size do
      out[j] = nil
    end
    size = done + 1
    out[size] = -1
    done = size
  end
end
return out
