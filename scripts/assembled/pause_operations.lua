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
--          1p<length>                 a pause of so many microseconds from now, if that is later
--                                     than the one that there is
--          1f                         a call has succeeded: if the pause is over, all others follow
--          1t<wait>/<quiet><steps>    a strike, unless the episode of the last one goes on: a pause
--                                     of the k-th of the steps, ":<length>:<length>…". The episode is
--                                     over after that, and after the wait; strikes are forgotten
--                                     when it is over for so long
-- Reply  for each key and operation:
--          x, c  the algorithm's words of a run. The first word is the number of requests
--                allowed, or charged: these are the first ones of the run
--          e     the same, and the two words of a ticket of the last request allowed
--          g     the permits given back, rounded up
--          p, f, t  the words of a look behind it
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
-- sets: lease
local lease = ARGV[2] + 0
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
    --   moved    the state is written
    --   written  whose clock the state is of
    --   repair   the server's clock stepped back: what lies too far ahead begins now
    -- needs: call key mark now
    -- sets: moved episode first forget instant length repair state strikes written
    local instant, length, first, strikes, episode, forget = 0, 0, 0, 0, 0, 0
    local written, repair, moved = mark, false, false
    local state = call('GET', key)
    if state then
      if state.err then return state end
      local a, b, c, d, e, f, by = string.match(state, '^(%d+)/(%d+)/(%d+)/(%d+)/(%d+)/(%d+)(@?)$')
      if not a then return {err = 'CORRUPT no state of a pause'} end
      instant = a + 0
      length = b + 0
      first = c + 0
      strikes = d + 0
      episode = e + 0
      forget = f + 0
      if math.max(instant, length, first, strikes, episode, forget) >= 2 ^ 53 then
        return {err = 'CORRUPT no state of a pause'}
      end
      if by == '@' then written = by end
      if now >= forget then strikes = 0 end
      -- <rewind>
    if not back then -- giving back repairs nothing
        -- needs: now episode first forget instant length repair written
        -- sets: episode first forget instant repair
        if written == '' and instant - now > length then
          local step = instant - now - length
          instant = now + length
          episode = math.max(episode - step, 0)
          forget = math.max(forget - step, 0)
          repair = true
        end
        if written == '' and first > now then
          first = now
          repair = true
        end
    end
      -- </rewind>
    end
    if back then
      local where = amount
      -- <giveback>
      -- The call that went first has not been made: another may go.
      -- needs: back first lease now where moved
      -- sets: moved first given
      local given = 0
      if first > 0 and first == where + 0 then
        first = math.max(now - lease, 1)
        given = back
        moved = true
        -- <store>
          -- needs: moved episode first forget instant key lease length now repair spare strikes written
          -- sets:
          if moved or repair then
            local keep = strikes > 0 and forget or 0
            if instant > 0 then keep = math.max(keep, instant + lease) end
            if first > 0 then keep = math.max(keep, first + 2 * lease) end
            if keep > now then
              local text = string.format('%d/%d/%d/%d/%d/%d', instant, length, first, strikes, episode, forget)
              redis.call('SET', key, text .. written,
                'PX', string.format('%d', math.floor((keep - now) / 1000) + 2 + spare))
            else
              redis.call('UNLINK', key)
            end
          end
      end
      size = size + 1
      out[size] = given
    elseif kind == 'p' or kind == 'f' or kind == 't' then
      local times, steps = 1, ''
      if kind == 't' then
        local rest, further = string.match(operations, '^%d+t%d+/%d+([:%d]*),?()', begin)
        steps = rest
        stop = further
      end
      -- <pause>
      -- A pause, a success, or a strike, see operations.lua.
      -- needs: kind amount which steps moved episode first forget instant lease length now strikes
      -- sets: moved episode first forget instant length strikes
      local span = -1
      if kind == 'p' then
        span = amount + 0
      elseif kind == 't' and now >= episode then
        strikes = strikes + 1
        local k = 0
        for step in string.gmatch(steps, '%d+') do
          k = k + 1
          if k <= strikes then span = step + 0 end -- the last one is for all further strikes
        end
        episode = now + math.max(span, amount + 0)
        forget = episode + which
        moved = true
      elseif kind == 'f' and lease > 0 and instant > 0 and now >= instant then
        instant = 0
        length = 0
        first = 0
        moved = true
      end
      if span >= 0 and now + span > instant then
        instant = now + span
        length = span
        first = 0
        moved = true
      end
      -- <fit>
      -- needs: first instant lease now times
      -- sets: allowed holds left
      local allowed, holds, left = times, 0, 0
      if now < instant then
        allowed = 0
        holds = 1
        left = instant - now
      elseif lease > 0 and instant > 0 then
        local free = instant -- since then the next one may go
        if first > 0 then free = first + lease end
        if now < free then
          allowed = 0
          holds = 2
          left = free - now
        elseif now < free + lease then
          allowed = math.min(times, 1)
          holds = 2
        end
      end
      -- <words>
      -- needs: out size allowed holds left
      -- sets: size
      out[size + 1] = allowed
      out[size + 2] = holds
      out[size + 3] = left
      size = size + 3
      -- <store>
        -- needs: moved episode first forget instant key lease length now repair spare strikes written
        -- sets:
        if moved or repair then
          local keep = strikes > 0 and forget or 0
          if instant > 0 then keep = math.max(keep, instant + lease) end
          if first > 0 then keep = math.max(keep, first + 2 * lease) end
          if keep > now then
            local text = string.format('%d/%d/%d/%d/%d/%d', instant, length, first, strikes, episode, forget)
            redis.call('SET', key, text .. written,
              'PX', string.format('%d', math.floor((keep - now) / 1000) + 2 + spare))
          else
            redis.call('UNLINK', key)
          end
        end
    else
      local change = repair
      repeat
        local n, times = permits + 0, amount + 0
        -- <fit>
        -- needs: first instant lease now times
        -- sets: allowed holds left
        local allowed, holds, left = times, 0, 0
        if now < instant then
          allowed = 0
          holds = 1
          left = instant - now
        elseif lease > 0 and instant > 0 then
          local free = instant -- since then the next one may go
          if first > 0 then free = first + lease end
          if now < free then
            allowed = 0
            holds = 2
            left = free - now
          elseif now < free + lease then
            allowed = math.min(times, 1)
            holds = 2
          end
        end
        if kind == 'c' then
          -- <charge>
          -- Nothing is counted, and nobody goes first by it.
          -- needs: allowed holds times
          -- sets: allowed holds
          allowed = times
          holds = 0
        end
        -- <take>
        -- needs: allowed moved first holds left lease now
        -- sets: moved first left
        if allowed > 0 and holds == 2 then
          first = now
          left = lease
          moved = true
        end
        -- <words>
        -- needs: out size allowed holds left
        -- sets: size
        out[size + 1] = allowed
        out[size + 2] = holds
        out[size + 3] = left
        size = size + 3
        if kind == 'e' then
          -- <ticket>
          -- When it went, if it goes first.
          -- needs: out size allowed first holds
          -- sets:
          out[size + 1] = allowed > 0 and holds == 2 and first or 0
          out[size + 2] = 0
          size = size + 2
        end
        change = change or allowed > 0
        begin = stop
        permits, kind, amount, stop = string.match(operations, '^(%d+)([xec])(%d+),?()', begin)
      until not kind
      if change then
        -- <store>
          -- needs: moved episode first forget instant key lease length now repair spare strikes written
          -- sets:
          if moved or repair then
            local keep = strikes > 0 and forget or 0
            if instant > 0 then keep = math.max(keep, instant + lease) end
            if first > 0 then keep = math.max(keep, first + 2 * lease) end
            if keep > now then
              local text = string.format('%d/%d/%d/%d/%d/%d', instant, length, first, strikes, episode, forget)
              redis.call('SET', key, text .. written,
                'PX', string.format('%d', math.floor((keep - now) / 1000) + 2 + spare))
            else
              redis.call('UNLINK', key)
            end
          end
      else
        -- <expire>
          -- A key that has lost its TTL gets one.
          -- needs: first forget instant key lease now spare state
          -- sets:
          if state and redis.call('PTTL', key) == -1 then
            local keep = math.max(instant + lease, first + 2 * lease, forget, now)
            redis.call('SET', key, state, 'PX', string.format('%d', math.floor((keep - now) / 1000) + 2 + spare))
          end
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
