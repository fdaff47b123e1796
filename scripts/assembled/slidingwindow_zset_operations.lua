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
-- Reply  for each key and operation:
--          x, c  the algorithm's words of a run. The first word is the number of requests
--                allowed, or charged: these are the first ones of the run
--          e     the same, and the two words of a ticket of the last request allowed
--          g     the permits given back, rounded up
--        If a key fails, one -1 comes in place of all that was not done: the key is as it
--        was before that (unless the user may not run a command that comes after the
--        first command that writes). Of an operation on its own, which has a script
--        without the function and the loops around it, the error is the reply.
--        One -2 comes in place of what was not done because there was no time left, see many.lua.
local call = redis.pcall
local budget, late = 500, {}
-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- <config>
-- needs:
-- sets: limit window
local limit, window = ARGV[2] + 0, ARGV[3] + 0
local out, size = {}, 0
local done = 0

-- A give back writes on its own, so it is loaded on its own, and so are reservations and cancels;
-- the operations up to the next such one are loaded once and stored once.
local function decide(key, operations)
  local begin = 1
  local permits, kind, amount, which, stop = string.match(operations, '^(%d+)(%a)(%d*)/?(%d*),?()')
  repeat
    if budget < 0 then return late end
    if not kind then return {err = 'ERR no operation'} end
    local back = kind == 'g' and permits + 0
    -- <load>
    -- The blocks after it use:
    --   at              the instant of the decision: now, or the last permit's if a clock is ahead
    --   edge            permits up to this instant have left the window
    --   used, stored    permits in the window; those in the key
    --   newest          instant at which the last permit counts as taken
    --   number, rule    the last permit's number; the rest of a name
    --   longest, ends   the longest window that has to be kept; until when the key is needed
    --   ended           nobody needs the permits that are in the key any more
    --   foreign         the last permit is of another rule, or of a clock that is ahead
    --   repair          the server's clock stepped back
    --   returned        1 if the last permit was given back
    -- needs: call key mark now window
    -- sets: at ends foreign last longest newest number ended repair returned rule stored used
    local at, used, newest, ends, repair, returned, ended = now, 0, 0, 0, false, 0, false
    local rule, longest, number, foreign = '/' .. ARGV[3] .. mark, window, 1000000000, false
    local edge = string.format('%d', now - window)
    local last = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
    if last.err then return last end
    if last[1] then
      local recent = last[2] + 0
      newest = recent
      ends = recent + window
      number = tonumber(string.sub(last[1], 1, 10))
      foreign = recent > now or recent < 0 or not number or string.sub(last[1], 11) ~= rule
      if foreign then
        local theirs, kind, others = string.match(last[1], '^[1-9]%d%d%d%d%d%d%d%d%d/(%d+)(@?)(.*)$')
        if not theirs or recent < 0 or recent + theirs >= 2 ^ 53 then
          return {err = 'CORRUPT no state of a sliding window in a sorted set'}
        end
        local step = 0
        if recent > now and (mark == '@' or kind == '@') then -- behind the clock that dated the permit
          at = recent
          rule = '/' .. ARGV[3] .. kind
        end
        -- <rewind>
    if not back then -- giving back repairs nothing
          -- The server's clock stepped back: permits with later instants count from now.
          -- needs: now at newest recent repair step
          -- sets: newest repair step
          if recent > at then
            repair = true
            step = recent - now
            newest = now
          end
    end
        -- </rewind>
        others = '+' .. theirs .. '/' .. string.format('%d', recent + theirs) .. others
        ends = 0
        for width, final in string.gmatch(others, '%+(%d+)/(%d+)') do
          final = final - step
          if final > ends then ends = final end
          if width + 0 > window and final > at then
            rule = rule .. '+' .. width .. '/' .. string.format('%d', final)
            longest = math.max(longest, width + 0)
          end
        end
        if ends >= 2 ^ 53 then return {err = 'CORRUPT no state of a sliding window in a sorted set'} end
        newest = math.min(newest, ends - window) -- when the key expires, its permits are forgotten
        edge = string.format('%d', ends > at and at - window or recent)
        if string.sub(last[1], -1) == '!' then returned = 1 end
      end
      ended = ends <= at
      -- The numbers begin again before they have another digit, and at an instant of their own.
      if number >= 5000000000 and recent < at then number = 1000000000 end
      used = call('ZCOUNT', key, '(' .. edge, '+inf')
      if used > 0 then used = used - returned end
    end
    local stored = used
    if back then
      local where = amount
      -- <giveback>
      -- which is the number of the ticket's first member. Members of one instant are in the order of
      -- their numbers, so two searches find the ticket's.
      -- The name of the last permit stays for as long as callers' clocks may be apart: without its
      -- instant, a clock that is behind would find the window of that time unused again.
      -- needs: at back budget call key last longest mark now returned spare where which window
      -- sets: budget given
      local rank, low = nil, call('ZCOUNT', key, '-inf', '(' .. where)
      local behind = low + call('ZCOUNT', key, where, where)
      for goal = which + 0, which + back, back do -- the rank of the first one, and that behind the last
        local high = behind
        rank = low
        while low < high do
          local middle = math.floor((low + high) / 2)
          local number = tonumber(string.sub(call('ZRANGE', key, middle, middle)[1], 1, 10))
          if number and number < goal then low = middle + 1 else high = middle end
          budget = budget - 1
        end
      end
      local given, latest = low - rank, false
      if given > 0 then
        latest = call('ZRANGE', key, low - 1, low - 1)[1] == last[1]
        if latest then given = given - returned end -- which is the last one
      end
      if given > 0 then
        local stays = latest and returned == 0 and string.find(last[1], '@', 1, true)
        if stays then redis.call('ZADD', key, where, last[1] .. '!') end
        redis.call('ZREMRANGEBYRANK', key, rank, rank + given - 1)
        budget = budget - given / 2
        -- An instant that stays before other permits keeps its TTL: other rules count from it when
        -- the state ends.
        local ttl
        if stays or returned == 1 then
          if call('ZCOUNT', key, '(' .. string.format('%d', at - longest), '+inf') == 1 then ttl = (at - now) / 1000 end
        else
          local top = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
          if top[1] and top[2] + 0 < where + 0 and (string.sub(top[1], 11) == '/' .. ARGV[3] .. mark or top[2] + longest <= at) then
            ttl = math.max(top[2] + window - now, 0) / 1000
          end
        end
        if ttl then redis.call('PEXPIRE', key, ttl - ttl % 2 + 101 + spare) end
      end
      size = size + 1
      out[size] = given
    else
      local change = repair
      repeat
        local n, times = permits + 0, amount + 0
        -- <fit>
        -- needs: n times limit used
        -- sets: allowed before room
        local allowed, before = times, used
        local room = limit - used
        if n * allowed > room then
          allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
        end
        if kind == 'c' then
          -- <charge>
          -- After fit: as many requests as the debt has room for. A member is a permit, and takes memory.
          -- needs: allowed n room times used
          -- sets: allowed
          room = 20000 - used
          allowed = times
          if n * allowed > room then allowed = math.max((room - room % n) / n, 0) end
        end
        -- <seek>
        -- Computes when the permit leaves the window that makes room. It is one of this execution
        -- if the stored ones are not enough.
        -- needs: allowed at call key limit n newest now returned stored times used window
        -- sets: wait
        local wait = 0
        if allowed < times then
          local over, leaves = used + (allowed + 1) * n - limit, newest -- so many permits have to leave
          if allowed > 0 then leaves = at end
          if over <= stored then
            local rank = over - stored - 1 - returned -- from the end
            leaves = math.min(call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + 0, leaves)
          end
          wait = leaves + window - now
        end
        -- <take>
        -- needs: n at used newest allowed
        -- sets: used newest
        used = used + allowed * n
        if allowed > 0 then newest = at end
        -- <words>
        -- needs: out size now newest allowed before wait
        -- sets: size
        out[size + 1] = allowed
        out[size + 2] = newest - now
        out[size + 3] = wait
        out[size + 4] = before
        size = size + 4
        if kind == 'e' then
          -- <ticket>
          -- The members' score, and the number that the store gives the last one.
          -- needs: out size at number used stored repair
          -- sets:
          out[size + 1] = at
          out[size + 2] = number + used - stored
          if repair then out[size + 2] = out[size + 2] + 1 end -- the last permit gets another name
          size = size + 2
        end
        change = change or allowed > 0
        begin = stop
        permits, kind, amount, stop = string.match(operations, '^(%d+)([xec])(%d+),?()', begin)
      until not kind
      if change then
        -- <store>
          -- needs: at budget ended ends foreign key longest now number repair returned rule spare stored used window
          -- sets: budget number
          local score, missing = string.format('%d', at), used - stored
          if ended then redis.call('UNLINK', key) end
          if repair then
            local later = redis.call('ZRANGEBYSCORE', key, '(' .. score, '+inf')
            budget = budget - #later
            for first = 1, #later, 1000 do
              local members = {}
              for i = first, math.min(first + 999, #later) do
                members[#members + 1] = score
                members[#members + 1] = later[i]
              end
              redis.call('ZADD', key, unpack(members))
            end
            missing = missing + 1 -- the last permit gets another name
          end
          for first = 1, missing, 1000 do
            local members = {}
            for i = 1, math.min(missing - first + 1, 1000) do
              number = number + 1
              members[2 * i - 1] = score
              members[2 * i] = number .. rule
            end
            redis.call('ZADD', key, unpack(members))
          end
          if repair or returned == 1 and not ended then redis.call('ZREMRANGEBYRANK', key, -missing - 1, -missing - 1) end
          -- What has left the windows is removed: at most 500 permits, and two for each one that
          -- is taken, so that what remains for the next calls does not grow.
          local kept = used
          if longest > window then -- no limit is above 10,000
            kept = math.min(redis.call('ZCOUNT', key, '(' .. string.format('%d', at - longest), '+inf'), 10000)
          end
          local left = redis.call('ZCARD', key) - kept
          if left > 0 then
            if left > 100 then
              left = math.min(left, 500 + 2 * missing)
              budget = budget - left / 2
            end
            redis.call('ZREMRANGEBYRANK', key, '0', left - 1)
          end
          -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
          -- as 1e+8.
          local ttl, old = window / 1000, -1
          if foreign then
            ttl = (math.max(ends, at + window) - now) / 1000
            if not repair then old = redis.call('PTTL', key) end
          end
          if old < ttl + spare then redis.call('PEXPIRE', key, ttl - ttl % 2 + 101 + spare) end
      else
        -- <expire>
          -- A key that has lost its TTL gets one.
          -- needs: key now spare ends
          -- sets:
          local ttl = (ends - now) / 1000
          if redis.call('PTTL', key) == -1 then redis.call('PEXPIRE', key, ttl - ttl % 2 + 101 + spare) end
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
    if failed == late then out[size] = -2 end
    done = size
  end
end
return out
