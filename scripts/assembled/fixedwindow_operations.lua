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
-- <config>
-- needs:
-- sets: most window
local most, window = ARGV[2] + 0, ARGV[3] + 0
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
    -- room is the difference of two counters. It is a multiple of 1,000,000 if the state
    -- is of a window of this length. The blocks after it use:
    --   left   milliseconds left of the window
    --   lasts  the same after a permit is taken under this rule
    --   open   the key goes on to count, with the TTL that it has
    --   taken  permits taken in this execution
    --   sliced milliseconds until the last slice ends: until then no rule ends the window
    --   runs   the TTL of a state that goes on for its writer, of whose window these are the digits
    -- needs: call key most window
    -- sets: digits lasts left open repair room runs sliced state taken
    local room, left, lasts, open, repair, runs, digits
    local taken, sliced = 0, 0
    local state = call('GET', key)
    if state then
      if state.err then return state end
      local value, counter, out = tonumber(state), state
      if not value then
        counter, out = string.match(state, '^(%d+)~(%d+)$')
        value = tonumber(counter) or -1
      end
      left = call('PTTL', key)
      lasts = left
      room = most - value
      -- INCRBY refuses a number of another form, such as 3e6: it has not so many digits.
      open = not out and value < 10 ^ #state and value >= 10 ^ (#state - 1) and room % 1000000 == 0
        and left > 0 and left <= window
      if not open then
        local theirs, slack, used = window, 1
        if value >= 0 then
          local code = value % 1000000
          if value < 2 ^ 53 and not string.find(counter, '%D') then used = (value - code) / 1000000 end
          if room % 1000000 ~= 0 then
            local exponent = code % 10
            theirs = (code - exponent) / 10 * 10 ^ exponent
            if code >= 100000 then slack = 10 ^ exponent end -- of five digits, more may have been cut
          end
        else
          local from, longest, margin, ends
          used, from, longest, margin, ends = string.match(state, '^(%d+)/(%d+)/([1-9]%d*)(@?%d*)~?(%d*)$') -- written by datedwindow.lua
          if used then
            theirs = math.floor(longest / 1000) -- the rest of an aligned window has microseconds
            slack = 3
            if left > 0 and margin == '' then -- the TTL is longer, and a window may be written many times by both
              local time = redis.call('TIME')
              left = math.max(math.ceil((from + longest - time[2]) / 1000 - time[1] * 1000), 0)
            elseif left > 0 then
              left = math.max(left - 1 - (tonumber(string.sub(margin, 2)) or 0), 0)
            end
            if ends ~= '' then out = math.floor(theirs - ends / 1000) end
          end
        end
        if not used or used % 1 ~= 0 then return {err = 'CORRUPT no state of a fixed window'} end
        -- No TTL, or the clock stepped back. A key that is there for its slices only, which last 10 s at most, may outlast its window.
        local longest = theirs + slack
        if out and out + 0 == 0 then longest = math.max(longest, 10002) end
        local stepped = left == -1 or left >= longest
        if out then sliced = math.max((stepped and longest or left) - out, 0) end
        lasts = math.max(left + window - theirs, sliced)
        if stepped then
          repair = true
          left = window
          lasts = window
        elseif left <= 0 or lasts <= 0 then -- that window is over
          used = 0
          left = window
          lasts = window
        elseif theirs > window or out and theirs == window then -- it goes on for that rule, which has taken permits
          if value >= 0 then
            open = not out
            runs = left
            digits = value % 1000000
          end
          left = lasts
        end
        left = math.min(left, window)
        lasts = math.min(lasts, window)
        room = most - most % 1000000 - used * 1000000
      end
    else
      room = most - most % 1000000
      left = window
      lasts = window
    end
    if back then
      local where = amount
      -- <giveback>
      -- The window is the ticket's if it may end when that does, and no later window may: one
      -- that opens when it is over ends a window's length after it, or later.
      -- needs: back call key lasts most open room runs state taken where which window
      -- sets: given room taken
      local given = 0
      local dated = string.match(state or '', '^%d+/%d+/(%d+)~?%d*$') -- a window whose state has its start
      dated = dated and dated + 0 == window * 1000
      if where == '' and state then -- a credit, to whichever window is open
        given = math.min(back, math.floor((most - room) / 1000000))
        taken = -given
        room = room + given * 1000000
        if most - room < 1000000 then
          redis.call('UNLINK', key)
        elseif given > 0 then
          -- <store>
            -- needs: digits key most room runs lasts open sliced taken
            -- sets:
            if open then
              redis.call('INCRBY', key, taken .. '000000')
            elseif most - room >= 2 ^ 53 then -- repair: more permits than a counter holds, in the state of datedwindow.lua
              redis.call('PEXPIRE', key, string.format('%d', lasts))
            else
              local ttl, counter, leased = runs or lasts, most - room, ''
              if runs then counter = counter - most % 1000000 + digits end
              if sliced > 0 then
                ttl = math.max(ttl, sliced)
                leased = string.format('~%d', ttl - sliced)
              end
              redis.call('SET', key, string.format('%d%s', counter, leased), 'PX', string.format('%d', ttl))
            end
        end
      elseif open or runs or dated then
        local time = redis.call('TIME')
        local ends = dated and lasts or call('PTTL', key)
        local after = redis.call('TIME')
        local earliest = ends + time[1] * 1000 + math.floor(time[2] / 1000)
        local latest = ends + after[1] * 1000 + math.floor(after[2] / 1000)
        -- Servers round the clock and TTLs to milliseconds in their own ways.
        if latest >= where - 1 and earliest <= where + which + 1 and latest < where + window then
          local used = math.floor((most - room) / 1000000)
          given = math.min(back, used)
          if given == used then
            redis.call('UNLINK', key)
          elseif given > 0 then
            taken = -given
            room = room + given * 1000000
            -- <store>
              -- needs: digits key most room runs lasts open sliced taken
              -- sets:
              if open then
                redis.call('INCRBY', key, taken .. '000000')
              elseif most - room >= 2 ^ 53 then -- repair: more permits than a counter holds, in the state of datedwindow.lua
                redis.call('PEXPIRE', key, string.format('%d', lasts))
              else
                local ttl, counter, leased = runs or lasts, most - room, ''
                if runs then counter = counter - most % 1000000 + digits end
                if sliced > 0 then
                  ttl = math.max(ttl, sliced)
                  leased = string.format('~%d', ttl - sliced)
                end
                redis.call('SET', key, string.format('%d%s', counter, leased), 'PX', string.format('%d', ttl))
              end
          end
        end
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
      -- needs: lasts least long room times
      -- sets: long times
      local fits = math.max(math.floor(room / 1000000), 0)
      times = math.min(times, math.max(math.min(fits, math.max(least, 1)), math.floor(fits / 4)))
      long = math.min(long, (lasts - 1) * 1000)
      if times < 1 or long < 1 then
        times = math.min(times, least)
        long = 0
      end
      local some = times > 0
      if not some then times = 1 end
      -- <fit>
      -- needs: n times room
      -- sets: cost allowed before
      local cost, allowed, before = n * 1000000, times, room
      if cost * allowed > room then
        if room < 0 then before = 0 end -- the limit was lowered; permits taken stay taken
        allowed = (before - before % cost) / cost
      end
      if not some then allowed = 0 end
      -- <take>
      -- needs: n cost allowed room left lasts taken
      -- sets: room left taken
      if allowed > 0 then
        left = lasts
        room = room - allowed * cost
        if allowed == 1 and taken == 0 then
          taken = n -- a string, as it came: a number would have to be formatted
        else
          taken = taken + allowed * n
        end
      end
      size = size + 1
      out[size] = allowed > 0 and long or 0
      -- <words>
      -- needs: out size allowed before left
      -- sets: size
      out[size + 1] = allowed
      out[size + 2] = before / 1000000
      out[size + 3] = left
      size = size + 3
      -- <slice>
      -- Its place: seal fills it in. A millisecond more, because TTLs are whole ones.
      -- needs: long open out size sliced
      -- sets: open sliced
      if long > 0 then
        sliced = math.max(sliced, math.ceil(long / 1000) + 1)
        open = false
      end
      out[size + 1] = 0
      out[size + 2] = 0
      size = size + 2
      if allowed > 0 or repair then
        -- <store>
          -- needs: digits key most room runs lasts open sliced taken
          -- sets:
          if open then
            redis.call('INCRBY', key, taken .. '000000')
          elseif most - room >= 2 ^ 53 then -- repair: more permits than a counter holds, in the state of datedwindow.lua
            redis.call('PEXPIRE', key, string.format('%d', lasts))
          else
            local ttl, counter, leased = runs or lasts, most - room, ''
            if runs then counter = counter - most % 1000000 + digits end
            if sliced > 0 then
              ttl = math.max(ttl, sliced)
              leased = string.format('~%d', ttl - sliced)
            end
            redis.call('SET', key, string.format('%d%s', counter, leased), 'PX', string.format('%d', ttl))
          end
        local tickets = {size - 2}
        -- <seal>
        -- After the store: the first of the milliseconds of which one is the end of the window, and
        -- how many follow. The clock goes on while a script runs, on a busy machine by several.
        -- needs: key out tickets
        -- sets:
        if tickets[1] then
          local time = redis.call('TIME')
          local ends = redis.call('PTTL', key)
          local after = redis.call('TIME')
          local first = time[1] * 1000 + math.floor(time[2] / 1000)
          for i = 1, #tickets do
            out[tickets[i] + 1] = first + ends
            out[tickets[i] + 2] = after[1] * 1000 + math.floor(after[2] / 1000) - first
          end
        end
      else
      end
    else
      local change = repair
      local tickets = {}
      repeat
        local n, times = permits + 0, amount + 0
        -- <fit>
        -- needs: n times room
        -- sets: cost allowed before
        local cost, allowed, before = n * 1000000, times, room
        if cost * allowed > room then
          if room < 0 then before = 0 end -- the limit was lowered; permits taken stay taken
          allowed = (before - before % cost) / cost
        end
        if kind == 'c' then
          -- <charge>
          -- After fit: as many requests as the debt has room for.
          -- needs: times most room cost allowed before
          -- sets: allowed before
          local debt = 4e15 - (most - room)
          allowed = times
          before = math.max(room, 0)
          if cost * allowed > debt then allowed = math.max((debt - debt % cost) / cost, 0) end
        end
        -- <take>
        -- needs: n cost allowed room left lasts taken
        -- sets: room left taken
        if allowed > 0 then
          left = lasts
          room = room - allowed * cost
          if allowed == 1 and taken == 0 then
            taken = n -- a string, as it came: a number would have to be formatted
          else
            taken = taken + allowed * n
          end
        end
        -- <words>
        -- needs: out size allowed before left
        -- sets: size
        out[size + 1] = allowed
        out[size + 2] = before / 1000000
        out[size + 3] = left
        size = size + 3
        if kind == 'e' then
          tickets[#tickets + 1] = size
          -- <ticket>
          -- Its place: seal fills it in.
          -- needs: out size
          -- sets:
          out[size + 1] = 0
          out[size + 2] = 0
          size = size + 2
        end
        change = change or allowed > 0
        begin = stop
        permits, kind, amount, stop = string.match(operations, '^(%d+)([xec])(%d+),?()', begin)
      until not kind
      if change then
        -- <store>
          -- needs: digits key most room runs lasts open sliced taken
          -- sets:
          if open then
            redis.call('INCRBY', key, taken .. '000000')
          elseif most - room >= 2 ^ 53 then -- repair: more permits than a counter holds, in the state of datedwindow.lua
            redis.call('PEXPIRE', key, string.format('%d', lasts))
          else
            local ttl, counter, leased = runs or lasts, most - room, ''
            if runs then counter = counter - most % 1000000 + digits end
            if sliced > 0 then
              ttl = math.max(ttl, sliced)
              leased = string.format('~%d', ttl - sliced)
            end
            redis.call('SET', key, string.format('%d%s', counter, leased), 'PX', string.format('%d', ttl))
          end
      else
      end
      -- <seal>
      -- After the store: the first of the milliseconds of which one is the end of the window, and
      -- how many follow. The clock goes on while a script runs, on a busy machine by several.
      -- needs: key out tickets
      -- sets:
      if tickets[1] then
        local time = redis.call('TIME')
        local ends = redis.call('PTTL', key)
        local after = redis.call('TIME')
        local first = time[1] * 1000 + math.floor(time[2] / 1000)
        for i = 1, #tickets do
          out[tickets[i] + 1] = first + ends
          out[tickets[i] + 2] = after[1] * 1000 + math.floor(after[2] / 1000) - first
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
