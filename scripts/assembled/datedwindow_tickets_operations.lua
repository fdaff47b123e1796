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
--          <permits>a<how>/<lease>/<id>
--                                     an estimate whose permits come back when its lease, in
--                                     microseconds, has ended (tickets.lua)
--          <permits>m<how>/<ticket>   this ticket takes so many more
--          <actual>u<how>/<ticket>    it is settled
--          1w<how>/<ticket>           its lease begins again
-- Reply  for each key and operation:
--          x, c  the algorithm's words of a run. The first word is the number of requests
--                allowed, or charged: these are the first ones of the run
--          e     the same, and the two words of a ticket of the last request allowed
--          g     the permits given back, rounded up
--          d     the microseconds within which the permits may be spent, 0 for at once; the words
--                of a run of as many requests for one permit; the two words of a ticket
--          a     as e; the last word is -1 if there are too many tickets
--          m     1, and then as e; or 0 if the ticket has been given back, and nothing was taken
--          u     1, and the permits given back; 2, and the words of a charge of what was missing; 4 if
--                nothing was; or, if the ticket had been given back, 0, and the words of a charge of all; 3
--                if nothing was used
--          w     1, or 0 if it has been given back
--        If a key fails, one -1 comes in place of all that was not done: the key is as it
--        was before that (unless the user may not run a command that comes after the
--        first command that writes). Of an operation on its own, which has a script
--        without the function and the loops around it, the error is the reply.
--        One -2 comes in place of what was not done because there was no time left, see many.lua.
local call = redis.pcall
-- <limits>
-- beside has the key of the tickets of each key; and the texts of numbers that many keys of an execution have in common, as
-- a format costs as much as a command. No key has the name of one of these: each has a colon.
-- needs:
-- sets: beside
local keys, beside = #KEYS / 2, {}
for i = 1, keys do
  beside[KEYS[i]] = KEYS[keys + i]
  KEYS[keys + i] = nil -- a second table would cost each key a fifth of a command
end
local budget, late = 500, {}
-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- <config>
-- An aligned window that was not changed by other rules, slices or clocks has the same text behind its permits, and the
-- same TTL, for all keys of the rule: to read and write that is cheaper.
--   opens  when a window of this rule has begun
--   tail   that text
--   life   that TTL, once it is needed
-- needs: mark now spare
-- sets: life limit offset opens tail window
local limit, window, offset = ARGV[2] + 0, ARGV[3] + 0, ARGV[4]
local opens, tail, life = now, nil, nil
if offset ~= 'first' then
  opens = now - (now - offset) % window
  tail = string.format('/%d/%d', opens, window)
  if mark == '@' then tail = tail .. '@' .. spare end
end
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
    -- <tickets>
    -- In front of load, of an operation on one ticket: finds it before those are given back whose lease has ended, so that its
    -- permits stay its own until another call needs them.
    -- needs: amount back beside call key kind now operations out permits size stop which
    -- sets: amount back fresh how id kind lease old permits size stop tickets which
    local tickets, fresh, old, lease, how, id = beside[key], kind == 'a'
    beside.settles = false
    if fresh then
      how = amount
      lease = which
      id, stop = string.match(operations, '^/(%w+),?()', stop)
    elseif kind == 'u' then
      local of, ends = which, string.find(operations, ',', stop, true) or #operations + 1
      local where, by = string.match(operations, '^/(%d+)/(%d+)/', stop)
      if not by then return {err = 'ERR no operation'} end
      local found = call('ZREM', tickets, string.sub(operations, stop - #of, ends - 1))
      if found ~= 1 and found ~= 0 then return found end
      stop = ends + 1
      local more = permits - found * of
      size = size + 1
      if found == 1 and more < 0 then
        out[size] = 1
        beside.settles = true
        back = -more
        amount = where
        which = by
      elseif more > 0 then
        out[size] = 2 * found
        kind = 'c'
        permits = more
        amount = 1
      else
        out[size] = 3 + found
        kind = 'n'
        beside.settles = true
      end
    elseif kind == 'w' or kind == 'm' then
      local of, rest, where, by, span, own, further =
        which, string.match(operations, '^(/(%d+)/(%d+)/(%d+)/(%w+)),?()', stop)
      local name = of .. rest
      how = amount
      lease = span
      id = own
      stop = further
      local ends = call('ZSCORE', tickets, name)
      if type(ends) == 'table' then return ends end
      size = size + 1
      out[size] = ends and 1 or 0
      if ends then
        redis.call('ZADD', tickets, now + lease, name)
        local ttl = lease / 1000
        if redis.call('PTTL', tickets) < ttl + 1 then redis.call('PEXPIRE', tickets, ttl - ttl % 2 + 951) end
        old = {name = name, permits = of + 0, where = where + 0, which = by + 0}
      end
      if kind == 'w' or not ends then kind = 'n' end
    end
    -- <load>
    -- Gives back what a hundred tickets whose lease has ended have taken, as a settlement by 0 does. The rest counts as taken until
    -- later calls. The tickets go first: if a write fails, nothing comes back twice. A settlement that gives back leaves
    -- that to others, and while a cancel is decided (operations.lua), call does not ask Redis. The blocks after it use:
    --   leases       the key of the tickets
    --   outstanding  how many tickets there are, false if none
    --   lasting      how long they have to be kept at least, milliseconds
    --   first        a ticket of this execution is the only one
    --   soon         a word, see seek
    -- needs: beside call key now
    -- sets: first lasting leases outstanding soon
    local leases, outstanding, lasting, soon, first = beside[key], false, 0, 0
    if call == redis.pcall and not beside.settles then
      local held = call('ZCARD', leases)
      if held ~= 0 then
        if type(held) == 'table' then return held end
        beside.now = beside.now or string.format('%d', now)
        local over = call('ZCOUNT', leases, '-inf', beside.now) -- a third of what it costs to read the first one
        if type(over) == 'table' then return over end
        if over > 0 then
          local ended = call('ZRANGEBYSCORE', leases, '-inf', beside.now, 'WITHSCORES', 'LIMIT', '0', '100')
          if ended.err then return ended end
          -- <returns>
          -- needs: budget ended leases outstanding
          -- sets: budget earliest outstanding
          local sums, count, earliest = {}, #ended / 2, 2 ^ 53 -- of those that can come back together
          for i = 1, #ended, 2 do
            local permits, place, which = string.match(ended[i], '^(%d+)/(%d+/(%d+))/')
            if not permits then return {err = 'CORRUPT no tickets'} end
            if which == '1' then place = string.format('%s/%s/%d', place, ended[i + 1], i) end
            sums[place] = (sums[place] or 0) + permits
            budget = budget - 2
          end
          redis.call('ZREMRANGEBYRANK', leases, '0', count - 1)
          outstanding = false
          for place, back in pairs(sums) do
            local where, which, stops = string.match(place, '^(%d+)/(%d+)/?(%d*)')
            budget = budget - 8
            -- <state>
            -- The blocks after it use:
            --   start, used  the window's start, and the permits taken from it
            --   lasts        how long it is for this rule
            --   longest      how long it is for the rule with the longest window that has taken from it
            --   written      whose clock the start is of, as the state has it
            --   margin       what the TTL is longer by, milliseconds
            --   repair       the server's clock stepped back: the window starts again, with its count
            --   sliced       how long after the start slices may be spent: until then no rule ends the window
            --   leased       what the state says of that
            --   plain        the state is tail behind its permits
            -- needs: call key mark now offset opens spare tail window
            -- sets: state start used lasts longest written margin repair sliced leased plain
            local start, used, lasts, longest, repair, sliced, leased = opens, 0, window, window, false, 0, ''
            local written, margin, plain = mark, spare, tail ~= nil
            if mark == '@' then written = '@' .. spare end
            local state = call('GET', key)
            if state and state.err then return state end
            local taken = state and plain and string.sub(state, -#tail) == tail and string.match(state, '^%d+')
            if taken and #taken + #tail == #state and #taken < 16 then
              used = taken + 0
            elseif state then
              local count, from, theirs, by, out = string.match(state, '^(%d+)/(%-?%d+)/([1-9]%d*)(@?%d*)~?(%d*)$')
              if not count then
                local digits, exponent -- written by fixedwindow.lua: the TTL is its end
                count, digits, exponent, out = string.match(state, '^(%d+)(%d%d%d%d%d)(%d)~?(%d*)$')
                if not count then return {err = 'CORRUPT no state of a fixed window'} end
                by = ''
                theirs = tonumber(digits, 10) * 10 ^ exponent * 1000 -- 10, because miniredis takes a first 0 for octal
                local left = call('PTTL', key)
                if left == -1 then left = theirs / 1000 end
                from = math.min(now, now - now % 1000 + left * 1000 - theirs)
                if out ~= '' then out = math.max(now + math.min(left - out, 10001) * 1000 - from, 0) end -- a slice lasts 10 s at most
              end
              out = tonumber(out) or 0
              local age, ends = now - from, math.max(math.min(window, theirs), out)
              if age < ends then
                plain = false
                start = from + 0
                used = count + 0
                lasts = ends
                sliced = out
                longest = math.max(window, theirs, sliced)
                if offset ~= 'first' and theirs + 0 == window - (start - offset) % window then -- the rest of its window stays that
                  longest = math.max(theirs, sliced)
                end
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
                  if sliced > 0 then -- as far from now as they were from the start; a slice lasts 10 s at most
                    sliced = math.min(sliced, 10001000) + now - start
                    longest = math.max(longest, sliced)
                  end
                end
                if start + sliced > now then leased = string.format('~%d', sliced) end
              elseif start < from + ends then
                plain = false
                longest = start + window - from - ends
                lasts = longest
                start = from + ends
              end
            end
            -- <giveback>
            -- By callers' clocks, a window that is unused again stays for as long as their skew: otherwise
            -- a clock that is behind would begin the window before it again.
            -- needs: key back start used longest written margin where window
            -- sets: given used
            local given = 0
            -- fixedwindow.lua moves the start to a whole millisecond, and servers round TTLs in their own ways.
            if where == '' or math.abs(start - where) < math.min(window, 2000) then given = math.min(back, used) end
            if given > 0 and given == used then
              if written == '' then
                redis.call('UNLINK', key)
              else
                redis.call('SET', key, string.format('0/%d/%d%s', start, longest, written), 'PX', string.format('%d', margin + 3))
              end
            elseif given > 0 then
              used = used - given
              -- <store>
              -- <write>
                -- needs: key now start used longest written margin leased life plain tail
                -- sets: life
                -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
                -- as 1e+8.
                local ttl = (start + longest - now) / 1000
                if margin > 0 then ttl = math.min(ttl, longest / 1000) end -- the margin is enough for a clock that is behind
                if plain and leased == '' and life then
                  redis.call('SET', key, string.format('%d%s', used, tail), 'PX', life)
                else
                  local keep = string.format('%d', ttl - ttl % 2 + 3 + margin)
                  redis.call('SET', key, string.format('%d/%d/%d%s%s', used, start, longest, written, leased), 'PX', keep)
                  if plain and leased == '' then life = keep end
                end
              -- <keep>
              -- Behind the store, which has just set ttl: tickets are kept for as long as their permits can count, and for their leases.
              -- needs: beside first lasting leases margin outstanding ttl
              -- sets:
              if outstanding then
                ttl = math.max(ttl + margin, lasting) + 4
                if first or redis.call('PTTL', leases) < ttl then
                  if ttl ~= beside.ttl then
                    beside.ttl = ttl
                    beside.text = string.format('%d', ttl + 950)
                  end
                  redis.call('PEXPIRE', leases, beside.text)
                end
              end
            end
          end
          held = redis.call('ZCARD', leases)
        end
      end
      outstanding = held > 0 and held
    end
    -- <state>
    -- The blocks after it use:
    --   start, used  the window's start, and the permits taken from it
    --   lasts        how long it is for this rule
    --   longest      how long it is for the rule with the longest window that has taken from it
    --   written      whose clock the start is of, as the state has it
    --   margin       what the TTL is longer by, milliseconds
    --   repair       the server's clock stepped back: the window starts again, with its count
    --   sliced       how long after the start slices may be spent: until then no rule ends the window
    --   leased       what the state says of that
    --   plain        the state is tail behind its permits
    -- needs: call key mark now offset opens spare tail window
    -- sets: state start used lasts longest written margin repair sliced leased plain
    local start, used, lasts, longest, repair, sliced, leased = opens, 0, window, window, false, 0, ''
    local written, margin, plain = mark, spare, tail ~= nil
    if mark == '@' then written = '@' .. spare end
    local state = call('GET', key)
    if state and state.err then return state end
    local taken = state and plain and string.sub(state, -#tail) == tail and string.match(state, '^%d+')
    if taken and #taken + #tail == #state and #taken < 16 then
      used = taken + 0
    elseif state then
      local count, from, theirs, by, out = string.match(state, '^(%d+)/(%-?%d+)/([1-9]%d*)(@?%d*)~?(%d*)$')
      if not count then
        local digits, exponent -- written by fixedwindow.lua: the TTL is its end
        count, digits, exponent, out = string.match(state, '^(%d+)(%d%d%d%d%d)(%d)~?(%d*)$')
        if not count then return {err = 'CORRUPT no state of a fixed window'} end
        by = ''
        theirs = tonumber(digits, 10) * 10 ^ exponent * 1000 -- 10, because miniredis takes a first 0 for octal
        local left = call('PTTL', key)
        if left == -1 then left = theirs / 1000 end
        from = math.min(now, now - now % 1000 + left * 1000 - theirs)
        if out ~= '' then out = math.max(now + math.min(left - out, 10001) * 1000 - from, 0) end -- a slice lasts 10 s at most
      end
      out = tonumber(out) or 0
      local age, ends = now - from, math.max(math.min(window, theirs), out)
      if age < ends then
        plain = false
        start = from + 0
        used = count + 0
        lasts = ends
        sliced = out
        longest = math.max(window, theirs, sliced)
        if offset ~= 'first' and theirs + 0 == window - (start - offset) % window then -- the rest of its window stays that
          longest = math.max(theirs, sliced)
        end
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
          if sliced > 0 then -- as far from now as they were from the start; a slice lasts 10 s at most
            sliced = math.min(sliced, 10001000) + now - start
            longest = math.max(longest, sliced)
          end
        end
        if start + sliced > now then leased = string.format('~%d', sliced) end
      elseif start < from + ends then
        plain = false
        longest = start + window - from - ends
        lasts = longest
        start = from + ends
      end
    end
    if back then
      local where = amount
      -- <giveback>
      -- By callers' clocks, a window that is unused again stays for as long as their skew: otherwise
      -- a clock that is behind would begin the window before it again.
      -- needs: key back start used longest written margin where window
      -- sets: given used
      local given = 0
      -- fixedwindow.lua moves the start to a whole millisecond, and servers round TTLs in their own ways.
      if where == '' or math.abs(start - where) < math.min(window, 2000) then given = math.min(back, used) end
      if given > 0 and given == used then
        if written == '' then
          redis.call('UNLINK', key)
        else
          redis.call('SET', key, string.format('0/%d/%d%s', start, longest, written), 'PX', string.format('%d', margin + 3))
        end
      elseif given > 0 then
        used = used - given
        -- <store>
        -- <write>
          -- needs: key now start used longest written margin leased life plain tail
          -- sets: life
          -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
          -- as 1e+8.
          local ttl = (start + longest - now) / 1000
          if margin > 0 then ttl = math.min(ttl, longest / 1000) end -- the margin is enough for a clock that is behind
          if plain and leased == '' and life then
            redis.call('SET', key, string.format('%d%s', used, tail), 'PX', life)
          else
            local keep = string.format('%d', ttl - ttl % 2 + 3 + margin)
            redis.call('SET', key, string.format('%d/%d/%d%s%s', used, start, longest, written, leased), 'PX', keep)
            if plain and leased == '' then life = keep end
          end
        -- <keep>
        -- Behind the store, which has just set ttl: tickets are kept for as long as their permits can count, and for their leases.
        -- needs: beside first lasting leases margin outstanding ttl
        -- sets:
        if outstanding then
          ttl = math.max(ttl + margin, lasting) + 4
          if first or redis.call('PTTL', leases) < ttl then
            if ttl ~= beside.ttl then
              beside.ttl = ttl
              beside.text = string.format('%d', ttl + 950)
            end
            redis.call('PEXPIRE', leases, beside.text)
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
      -- needs: least limit long longest now sliced start times used window
      -- sets: long times
      local fits = math.max(limit - used, 0)
      times = math.min(times, math.max(math.min(fits, math.max(least, 1)), math.floor(fits / 4)))
      long = times > 0 and math.min(long, start + math.max(math.min(window, longest), sliced) - now) or 0
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
      -- <seek>
      -- When tickets that end make room for the first denied request: the least of max(ends, fits) for those that end first, where
      -- fits is when it fits once their permits are back. If 256 do not say so, the call asks again when the last of them ends.
      -- After the server's clock stepped back, no lease ends later than one that begins now.
      -- needs: allowed budget call leases now outstanding soon times
      -- sets: budget soon
      soon = 0
      if allowed < times and outstanding then
        local back, ends, fits, from, least = 0, 0, 2 ^ 53, 0, 2 ^ 53
        while from < 256 and ends < least do
          local some = call('ZRANGE', leases, from, from + 15, 'WITHSCORES')
          if some.err then return some end
          for i = 1, #some, 2 do
            local permits, where, which, lease = string.match(some[i], '^(%d+)/(%d+)/(%d+)/(%d+)/')
            if not permits then return {err = 'CORRUPT no tickets'} end
            ends = math.max(some[i + 1] - now, 1)
            if ends > lease + 0 then
              ends = lease + 0
              redis.call('ZADD', leases, now + ends, some[i])
            end
            -- <frees>
            -- needs: allowed back fits limit n permits start used where window
            -- sets: back fits
            if math.abs(start - where) < math.min(window, 2000) then back = back + permits end
            if used + (allowed + 1) * n - math.min(back, used) <= limit then fits = 0 end
            least = math.min(least, math.max(ends, fits))
            budget = budget - 2
          end
          from = from + 16
          if #some < 32 then ends = 2 ^ 53 end -- there are no others
        end
        if ends < least then least = ends end
        if least < 2 ^ 53 then soon = least end
      end
      -- <take>
      -- needs: n window allowed used lasts longest sliced
      -- sets: used lasts
      used = used + allowed * n
      if allowed > 0 then lasts = math.max(math.min(window, longest), sliced) end
      size = size + 1
      out[size] = allowed > 0 and long or 0
      -- <words>
      -- needs: out size now start lasts allowed before
      -- sets: size
      out[size + 1] = allowed
      out[size + 2] = before
      out[size + 3] = start + lasts - now
      size = size + 3
      -- Behind the words of the algorithm.
      -- needs: out size soon
      -- sets: size
      out[size + 1] = soon
      size = size + 1
      -- <slice>
      -- needs: leased long now out size sliced start
      -- sets: leased
      if long > 0 then leased = string.format('~%d', math.max(sliced, math.max(now - start, 0) + long)) end
      out[size + 1] = start
      out[size + 2] = 0
      size = size + 2
      if allowed > 0 or repair then
        -- <store>
        -- <write>
          -- needs: key now start used longest written margin leased life plain tail
          -- sets: life
          -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
          -- as 1e+8.
          local ttl = (start + longest - now) / 1000
          if margin > 0 then ttl = math.min(ttl, longest / 1000) end -- the margin is enough for a clock that is behind
          if plain and leased == '' and life then
            redis.call('SET', key, string.format('%d%s', used, tail), 'PX', life)
          else
            local keep = string.format('%d', ttl - ttl % 2 + 3 + margin)
            redis.call('SET', key, string.format('%d/%d/%d%s%s', used, start, longest, written, leased), 'PX', keep)
            if plain and leased == '' then life = keep end
          end
        -- <keep>
        -- Behind the store, which has just set ttl: tickets are kept for as long as their permits can count, and for their leases.
        -- needs: beside first lasting leases margin outstanding ttl
        -- sets:
        if outstanding then
          ttl = math.max(ttl + margin, lasting) + 4
          if first or redis.call('PTTL', leases) < ttl then
            if ttl ~= beside.ttl then
              beside.ttl = ttl
              beside.text = string.format('%d', ttl + 950)
            end
            redis.call('PEXPIRE', leases, beside.text)
          end
        end
      else
        -- <expire>
          -- A key that has lost its TTL gets one.
          -- needs: key now state start longest margin
          -- sets:
          local ttl = (start + longest - now) / 1000
          if redis.call('PTTL', key) == -1 then redis.call('SET', key, state, 'PX', ttl - ttl % 2 + 3 + margin) end
      end
    elseif kind == 'a' or kind == 'm' then
      local n, times = permits + 0, 1
      -- <fit>
      -- needs: n times limit used
      -- sets: allowed before
      local allowed, before = times, math.max(limit - used, 0)
      if n * allowed > before then
        allowed = (before - before % n) / n
      end
      -- <full>
      -- Behind fit: one key has at most ten thousand tickets.
      -- needs: allowed fresh outstanding
      -- sets: allowed full
      local full = fresh and allowed > 0 and outstanding and outstanding >= 10000
      if full then allowed = 0 end
      -- <seek>
      -- When tickets that end make room for the first denied request: the least of max(ends, fits) for those that end first, where
      -- fits is when it fits once their permits are back. If 256 do not say so, the call asks again when the last of them ends.
      -- After the server's clock stepped back, no lease ends later than one that begins now.
      -- needs: allowed budget call leases now outstanding soon times
      -- sets: budget soon
      soon = 0
      if allowed < times and outstanding then
        local back, ends, fits, from, least = 0, 0, 2 ^ 53, 0, 2 ^ 53
        while from < 256 and ends < least do
          local some = call('ZRANGE', leases, from, from + 15, 'WITHSCORES')
          if some.err then return some end
          for i = 1, #some, 2 do
            local permits, where, which, lease = string.match(some[i], '^(%d+)/(%d+)/(%d+)/(%d+)/')
            if not permits then return {err = 'CORRUPT no tickets'} end
            ends = math.max(some[i + 1] - now, 1)
            if ends > lease + 0 then
              ends = lease + 0
              redis.call('ZADD', leases, now + ends, some[i])
            end
            -- <frees>
            -- needs: allowed back fits limit n permits start used where window
            -- sets: back fits
            if math.abs(start - where) < math.min(window, 2000) then back = back + permits end
            if used + (allowed + 1) * n - math.min(back, used) <= limit then fits = 0 end
            least = math.min(least, math.max(ends, fits))
            budget = budget - 2
          end
          from = from + 16
          if #some < 32 then ends = 2 ^ 53 end -- there are no others
        end
        if ends < least then least = ends end
        if least < 2 ^ 53 then soon = least end
      end
      -- <take>
      -- needs: n window allowed used lasts longest sliced
      -- sets: used lasts
      used = used + allowed * n
      if allowed > 0 then lasts = math.max(math.min(window, longest), sliced) end
      -- <words>
      -- needs: out size now start lasts allowed before
      -- sets: size
      out[size + 1] = allowed
      out[size + 2] = before
      out[size + 3] = start + lasts - now
      size = size + 3
      -- Behind the words of the algorithm.
      -- needs: out size soon
      -- sets: size
      out[size + 1] = soon
      size = size + 1
      -- <ticket>
      -- The window's start.
      -- needs: out size start
      -- sets:
      out[size + 1] = start
      out[size + 2] = 0
      -- <begin>
      -- Behind ticket, whose words it makes those of the ticket's name; the second is -1 if there are too many tickets. how says
      -- what giveback needs: '0' the words, '1' the instant, for exact returns, '2' the instant if slices are out, '3' the words, of a
      -- log. old is the ticket that takes more: they become one, unless the old one's window is over, or it is of another entry of a
      -- log: then both stay.
      -- needs: allowed beside first full how id lasting lease leases now old out outstanding permits size
      -- sets: first lasting outstanding
      if allowed > 0 then
        local where, which, total = out[size + 1], out[size + 2], permits
        if how == '1' then which = 1 end
        if old then
          if how == '1' or how == '2' then where = old.where end
          local joins = where == old.where and which == old.which
          if joins then total = total + old.permits end
          if joins or how ~= '3' then redis.call('ZREM', leases, old.name) end
        end
        out[size + 1] = where
        out[size + 2] = which
        -- A number costs Redis more than its text, and a format more than to join texts, of which most keys of an execution have two in
        -- common; total has less than 14 digits.
        if lease ~= beside.lease then
          beside.lease = lease
          beside.ends = string.format('%d', now + lease)
          beside.where = nil
        end
        if where ~= beside.where or which ~= beside.which then
          beside.where = where
          beside.which = which
          beside.place = string.format('/%d/%d/%s/', where, which, lease)
        end
        redis.call('ZADD', leases, beside.ends, total .. beside.place .. id)
        first = first or not outstanding
        outstanding = true
        lasting = lease / 1000
      elseif full then
        out[size + 2] = -1
      end
      size = size + 2
      if allowed > 0 or repair then
        -- <store>
        -- <write>
          -- needs: key now start used longest written margin leased life plain tail
          -- sets: life
          -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
          -- as 1e+8.
          local ttl = (start + longest - now) / 1000
          if margin > 0 then ttl = math.min(ttl, longest / 1000) end -- the margin is enough for a clock that is behind
          if plain and leased == '' and life then
            redis.call('SET', key, string.format('%d%s', used, tail), 'PX', life)
          else
            local keep = string.format('%d', ttl - ttl % 2 + 3 + margin)
            redis.call('SET', key, string.format('%d/%d/%d%s%s', used, start, longest, written, leased), 'PX', keep)
            if plain and leased == '' then life = keep end
          end
        -- <keep>
        -- Behind the store, which has just set ttl: tickets are kept for as long as their permits can count, and for their leases.
        -- needs: beside first lasting leases margin outstanding ttl
        -- sets:
        if outstanding then
          ttl = math.max(ttl + margin, lasting) + 4
          if first or redis.call('PTTL', leases) < ttl then
            if ttl ~= beside.ttl then
              beside.ttl = ttl
              beside.text = string.format('%d', ttl + 950)
            end
            redis.call('PEXPIRE', leases, beside.text)
          end
        end
      else
        -- <expire>
          -- A key that has lost its TTL gets one.
          -- needs: key now state start longest margin
          -- sets:
          local ttl = (start + longest - now) / 1000
          if redis.call('PTTL', key) == -1 then redis.call('SET', key, state, 'PX', ttl - ttl % 2 + 3 + margin) end
      end
    elseif kind == 'n' then
      begin = stop -- nothing is left to do
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
        -- <seek>
        -- When tickets that end make room for the first denied request: the least of max(ends, fits) for those that end first, where
        -- fits is when it fits once their permits are back. If 256 do not say so, the call asks again when the last of them ends.
        -- After the server's clock stepped back, no lease ends later than one that begins now.
        -- needs: allowed budget call leases now outstanding soon times
        -- sets: budget soon
        soon = 0
        if allowed < times and outstanding then
          local back, ends, fits, from, least = 0, 0, 2 ^ 53, 0, 2 ^ 53
          while from < 256 and ends < least do
            local some = call('ZRANGE', leases, from, from + 15, 'WITHSCORES')
            if some.err then return some end
            for i = 1, #some, 2 do
              local permits, where, which, lease = string.match(some[i], '^(%d+)/(%d+)/(%d+)/(%d+)/')
              if not permits then return {err = 'CORRUPT no tickets'} end
              ends = math.max(some[i + 1] - now, 1)
              if ends > lease + 0 then
                ends = lease + 0
                redis.call('ZADD', leases, now + ends, some[i])
              end
              -- <frees>
              -- needs: allowed back fits limit n permits start used where window
              -- sets: back fits
              if math.abs(start - where) < math.min(window, 2000) then back = back + permits end
              if used + (allowed + 1) * n - math.min(back, used) <= limit then fits = 0 end
              least = math.min(least, math.max(ends, fits))
              budget = budget - 2
            end
            from = from + 16
            if #some < 32 then ends = 2 ^ 53 end -- there are no others
          end
          if ends < least then least = ends end
          if least < 2 ^ 53 then soon = least end
        end
        -- <take>
        -- needs: n window allowed used lasts longest sliced
        -- sets: used lasts
        used = used + allowed * n
        if allowed > 0 then lasts = math.max(math.min(window, longest), sliced) end
        -- <words>
        -- needs: out size now start lasts allowed before
        -- sets: size
        out[size + 1] = allowed
        out[size + 2] = before
        out[size + 3] = start + lasts - now
        size = size + 3
        -- Behind the words of the algorithm.
        -- needs: out size soon
        -- sets: size
        out[size + 1] = soon
        size = size + 1
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
        -- <write>
          -- needs: key now start used longest written margin leased life plain tail
          -- sets: life
          -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
          -- as 1e+8.
          local ttl = (start + longest - now) / 1000
          if margin > 0 then ttl = math.min(ttl, longest / 1000) end -- the margin is enough for a clock that is behind
          if plain and leased == '' and life then
            redis.call('SET', key, string.format('%d%s', used, tail), 'PX', life)
          else
            local keep = string.format('%d', ttl - ttl % 2 + 3 + margin)
            redis.call('SET', key, string.format('%d/%d/%d%s%s', used, start, longest, written, leased), 'PX', keep)
            if plain and leased == '' then life = keep end
          end
        -- <keep>
        -- Behind the store, which has just set ttl: tickets are kept for as long as their permits can count, and for their leases.
        -- needs: beside first lasting leases margin outstanding ttl
        -- sets:
        if outstanding then
          ttl = math.max(ttl + margin, lasting) + 4
          if first or redis.call('PTTL', leases) < ttl then
            if ttl ~= beside.ttl then
              beside.ttl = ttl
              beside.text = string.format('%d', ttl + 950)
            end
            redis.call('PEXPIRE', leases, beside.text)
          end
        end
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
    if failed == late then out[size] = -2 end
    done = size
  end
end
return out
