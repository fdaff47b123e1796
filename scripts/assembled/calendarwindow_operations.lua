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
--          <permits>g<where>/<which>  give back what a ticket stands for; a credit has no <where>
--          <most>d<waiting>/<shortest>/<longest>/<id>
--                                     a slice: up to so many permits, and at least those that callers wait
--                                     for, to be spent within so many microseconds, of a bucket as many as
--                                     cost nothing (lease). The id is for those that may come back (mark)
-- Reply  for each key and operation:
--          x, c  the algorithm's words of a run. The first word is the number of requests
--                allowed, or charged: these are the first ones of the run
--          e     the same, and the two words of a ticket of the last request allowed
--          g     the permits given back, rounded up
--          d     the microseconds within which the permits may be spent, 0 for at once; the words
--                of a run of as many requests for one permit; the two words of a ticket
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
-- needs: now
-- sets: after ends limit opens
local limit, opens, ends, after = ARGV[2] + 0, ARGV[4] + 0, ARGV[5] + 0, ARGV[6] + 0
if now < opens then
  after = ends
  ends = opens
  opens = ARGV[3] + 0
elseif now >= ends then
  opens = ends
  ends = after
  after = ARGV[7] + 0
end
if now < opens or now >= ends then return {err = string.format('OUTSIDE %.0f', now), outside = true} end
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
    --   used     the permits taken, the last of them at the instant last
    --   keep     when the windows of the rules that took them have ended
    --   closes   when this rule's window ends, if it has taken any
    --   lasts    how long this rule's window is
    --   written  whose clock the state is of
    --   margin   what the TTL is longer by, milliseconds
    --   repair   the server's clock stepped back: the state is dated now, with its count
    --   sliced   until when slices may be spent, if that is after last: no rule begins the count again before
    -- needs: after call ends key mark now opens spare
    -- sets: state used last keep closes lasts written margin repair sliced
    local used, last, keep, closes, lasts, repair, sliced = 0, now, ends, ends, ends - opens, false, 0
    local written, margin = mark, spare
    if mark == '@' then written = '@' .. spare end
    local state = call('GET', key)
    if state then
      if state.err then return state end
      local count, latest, till, by, out = string.match(state, '^(%d+)/(%d+)%-(%d+)(@?%d*)~?(%d*)$')
      if not count then return {err = 'CORRUPT no state of a calendar window'} end
      latest = latest + 0
      till = till + 0
      if latest >= till or till + count >= 2 ^ 53 then return {err = 'CORRUPT no state of a calendar window'} end
      out = latest + (tonumber(out) or 0)
      if (latest >= opens or now < out) and now < till then
        used = count + 0
        keep = till
        if by ~= '' then
          local longer = tonumber(string.sub(by, 2)) or 2 ^ 53
          if longer > 86400000 then return {err = 'CORRUPT no state of a calendar window'} end -- more than a day
          margin = math.max(spare, longer)
          written = '@' .. margin
        end
        if latest >= ends then -- another caller's clock is ahead, or the server's stepped back
          if mark == '' and by == '' and latest >= after then
            keep = math.max(ends, till - (latest - now))
            out = out - (latest - now)
            latest = now
            repair = true
          elseif latest < after then -- the window that has begun goes on, or it could allow its limit twice
            closes = after
            lasts = after - ends
          else
            closes = till
          end
        elseif latest < opens then
          closes = out
        end
        last = math.max(latest, now)
        sliced = out
      end
    end
    if back then
      local where = amount
      -- <giveback>
      -- The count is of the ticket's permits only if it is kept for as long as their window:
      -- otherwise a shorter window of another rule has begun it again. By callers' clocks, a window
      -- that is unused again stays for as long as their skew: otherwise a clock that is behind would
      -- begin the window before it again.
      -- needs: key back closes keep used last written margin where
      -- sets: given used
      local given = 0
      if where == '' or closes == where + 0 and keep >= closes then given = math.min(back, used) end
      if given > 0 and given == used then
        if written == '' then
          redis.call('UNLINK', key)
        else
          redis.call('SET', key, string.format('0/%d-%d%s', last, keep, written), 'PX', string.format('%d', margin + 3))
        end
      elseif given > 0 then
        used = used - given
        -- <store>
          -- needs: key now used last keep written margin sliced
          -- sets:
          -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
          -- as 1e+8.
          local ttl = (keep - now) / 1000
          if margin > 0 then ttl = (keep - last) / 1000 end -- the margin is enough for a clock that is behind
          local leased = sliced > last and string.format('~%d', sliced - last) or ''
          redis.call('SET', key, string.format('%d/%d-%d%s%s', used, last, keep, written, leased),
            'PX', ttl - ttl % 2 + 3 + margin)
      end
      size = size + 1
      out[size] = given
    elseif kind == 'd' then
      local least, shortest, long, id, further = string.match(operations, '^%d+d(%d+)/(%d+)/(%d+)/(%d+),?()', begin)
      local n, times = 1, permits + 0
      least = least + 0
      long = long + 0
      stop = further
      -- <lease>
      -- A slice gets so many of the requests (times), and of the last permits one even if nobody waits for it. It
      -- lasts so long (long), but not beyond the end of the window.
      -- needs: closes ends least limit long now times used
      -- sets: long times
      local fits = math.max(limit - used, 0)
      times = math.min(times, math.max(math.min(fits, math.max(least, 1)), math.floor(fits / 4)))
      long = times > 0 and math.min(long, math.max(closes, ends) - now) or 0
      local some = times > 0
      if not some then times = 1 end
      -- <fit>
      -- needs: n times limit used
      -- sets: allowed before
      local allowed, before = times, math.max(limit - used, 0)
      if n * allowed > before then
        allowed = (before - before % n) / n
      end
      if not some then allowed = 0 end
      -- <take>
      -- needs: n allowed used keep closes ends
      -- sets: used keep closes
      used = used + allowed * n
      if allowed > 0 then
        closes = math.max(closes, ends)
        keep = math.max(keep, closes)
      end
      size = size + 1
      out[size] = allowed > 0 and long or 0
      -- <words>
      -- needs: out size now keep closes lasts allowed before
      -- sets: size
      out[size + 1] = allowed
      out[size + 2] = before
      out[size + 3] = math.min(keep, closes) - now
      out[size + 4] = lasts
      size = size + 4
      -- <slice>
      -- needs: closes last long out size sliced
      -- sets: sliced
      if long > 0 then sliced = math.max(sliced, last + long) end
      out[size + 1] = closes
      out[size + 2] = 0
      size = size + 2
      if allowed > 0 or repair then
        -- <store>
          -- needs: key now used last keep written margin sliced
          -- sets:
          -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
          -- as 1e+8.
          local ttl = (keep - now) / 1000
          if margin > 0 then ttl = (keep - last) / 1000 end -- the margin is enough for a clock that is behind
          local leased = sliced > last and string.format('~%d', sliced - last) or ''
          redis.call('SET', key, string.format('%d/%d-%d%s%s', used, last, keep, written, leased),
            'PX', ttl - ttl % 2 + 3 + margin)
      else
        -- <expire>
          -- A key that has lost its TTL gets one.
          -- needs: key now state keep margin
          -- sets:
          local ttl = (keep - now) / 1000
          if redis.call('PTTL', key) == -1 then redis.call('SET', key, state, 'PX', ttl - ttl % 2 + 3 + margin) end
      end
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
          local room = 4e12 - used
          allowed = times
          if n * allowed > room then allowed = math.max((room - room % n) / n, 0) end
        end
        -- <take>
        -- needs: n allowed used keep closes ends
        -- sets: used keep closes
        used = used + allowed * n
        if allowed > 0 then
          closes = math.max(closes, ends)
          keep = math.max(keep, closes)
        end
        -- <words>
        -- needs: out size now keep closes lasts allowed before
        -- sets: size
        out[size + 1] = allowed
        out[size + 2] = before
        out[size + 3] = math.min(keep, closes) - now
        out[size + 4] = lasts
        size = size + 4
        if kind == 'e' then
          -- <ticket>
          -- The window's end.
          -- needs: out size closes
          -- sets:
          out[size + 1] = closes
          out[size + 2] = 0
          size = size + 2
        end
        change = change or allowed > 0
        begin = stop
        permits, kind, amount, stop = string.match(operations, '^(%d+)([xec])(%d+),?()', begin)
      until not kind
      if change then
        -- <store>
          -- needs: key now used last keep written margin sliced
          -- sets:
          -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
          -- as 1e+8.
          local ttl = (keep - now) / 1000
          if margin > 0 then ttl = (keep - last) / 1000 end -- the margin is enough for a clock that is behind
          local leased = sliced > last and string.format('~%d', sliced - last) or ''
          redis.call('SET', key, string.format('%d/%d-%d%s%s', used, last, keep, written, leased),
            'PX', ttl - ttl % 2 + 3 + margin)
      else
        -- <expire>
          -- A key that has lost its TTL gets one.
          -- needs: key now state keep margin
          -- sets:
          local ttl = (keep - now) / 1000
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
