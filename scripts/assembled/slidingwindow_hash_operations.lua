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
--        One -2 comes in place of what was not done because there was no time left, see many.lua.
local call = redis.pcall
local budget, late = 500, {}
-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- <config>
-- needs: call
-- sets: rule grain limit window longest corrupt bounds
local rule, grain, limit, window = ARGV[2], ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local longest = window
local corrupt = 'CORRUPT no state of a log in a hash'
-- The number of entry 0, and that of the last entry counted from there, which few
-- decisions need; nil if they cannot be right.
local function bounds(log)
  local numbers = call('HMGET', log, 'first', 'last')
  local first, final = tonumber(numbers[1]), tonumber(numbers[2])
  if first and final and first >= 0 and final > first and final < 2 ^ 53 then
    return first, final - first
  end
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
    -- <load>
    -- Reads what this decision needs of the log. The blocks after it use:
    --   present         the instant at which the call is decided: now, unless it has to be later
    --   slot            last instant of the present slot, at which permits taken now are dated
    --   total, used     permits taken since the log began; those that count now
    --   stored, recent  total and instant of the last entry before this execution; a clock that
    --                   stepped back dates it at slot or earlier
    --   newest          last instant at which a permit was taken, this execution's included
    --   last            number of the last entry, nil unless it was needed
    --   exists, renew   there is a log to go on with; there is one that has to be deleted
    --   repair, kept    the clock stepped back: the entries after number kept have to go
    --   forget          number of the entry that becomes entry 0
    --   text            the rule that an allowed call writes; said is the stored one
    --   era             0, or the clock has stepped back: instants up to this one are used again
    --   gone, others    the instants at which the state is no longer needed, and at which
    --                   nobody else needs it
    --   left, under     the last entry that has left the window: its number, its total
    --   alive           the instant of the entry after it
    -- needs: bounds budget call corrupt grain key longest mark now rule spare window
    -- sets: alive base budget era exists first forget gone instant last left newest oldest others present recent renew repair said slack slot stored text total under used

    -- <open>
    -- The rule (said), the last entry (instant, total), the total of entry 0 (base) and the
    -- instant of entry 1 (oldest).
    -- needs: call key rule corrupt
    -- sets: exists said instant total base oldest
    local exists, said, instant, total, base, oldest = false, rule, 0, 0, 0, 0
    local fields = call('HMGET', key, 'rule', 'instant', 'total', 'base', 'oldest')
    if fields.err then return fields end
    if fields[2] or fields[3] then
      exists = true
      said = fields[1]
      instant = tonumber(fields[2])
      total = tonumber(fields[3])
      base = tonumber(fields[4])
      oldest = tonumber(fields[5])
      -- A comparison with NaN is false.
      if not (instant and total and base and oldest and oldest <= instant and base <= total and total < 2 ^ 53) then
        return {err = corrupt}
      end
    end
    -- </open>

    local present, slot = now, now - now % grain + grain - 1
    local text, held, gone, others, newest, slack = rule, longest, instant + longest, 0, instant, spare
    local first, last -- see bounds
    local era = 0
    local renew, kept, repair, forget = false, 0, false, 0
    -- Others have used the key, or the clock is behind.
    if said ~= rule or instant > slot then
      -- <writer>
      -- The rule that the state was written by, as far as it is another one; what it says of slices (lent, series),
      -- and of a clock that stepped back (era).
      -- needs: era rule grain mark longest said corrupt
      -- sets: theirs coarse signed more lent series era
      local theirs, coarse, signed, more, lent, series = longest, grain, mark, '', nil, nil
      if said ~= rule then
        theirs, coarse, signed, more = string.match(said or '', '^([1-9]%d*)/([1-9]%d*)(@?)(.*)$')
        if not theirs then return {err = corrupt} end
        theirs = theirs + 0
        coarse = coarse + 0
        lent, series = string.match(more, '~(%d+)/(%d+)')
        era = tonumber(string.match(series or '', '^0(%d+)$') or 0)
      end
      -- </writer>
      -- <rewind>
    if not back then -- giving back repairs nothing
        -- The server's clock stepped back before the slot of the last entry: permits taken after
        -- that slot's present one count as taken in it. If slices may be out, they count as taken a slot
        -- from now, beyond which none lasts. Instants are used again now, so an era begins: see giveback.
        -- needs: bounds budget call coarse corrupt era first instant kept key last lent mark now oldest repair said series signed
        -- sets: budget era first instant last lent oldest repair said series
        if instant - coarse >= now and mark == '' and signed == '' then
          first, last = bounds(key)
          if not last then return {err = corrupt} end
          local slices = lent and lent + 0 ~= era
          era = math.max(instant, era) + 1
          instant = now - now % coarse + coarse - 1
          if slices then instant = now + coarse - 1 end
          lent = string.format('%d', slices and instant or era)
          series = string.format('0%d', era)
          said = string.gsub(said, '~.*', '') .. '~' .. lent .. '/' .. series
          if oldest < instant then
            kept = 1
            local high = last
            while high - kept > 1 do
              local middle = math.floor((kept + high) / 2)
              local entry = call('HMGET', key, string.format('%d', first + middle))[1]
              local at = tonumber((string.match(entry or '', '^(%d+)/')))
              budget = budget - 4
              if not at then return {err = corrupt} end
              if at < instant then kept = middle else high = middle end
            end
          else
            oldest = instant
          end
          last = kept + 1
          repair = true
        end
    end
      -- </rewind>
      -- <others>
      -- What others need is kept. The last entry is never moved back: permits are dated at its
      -- instant until that has come. If its slot has not even begun, a caller's clock is ahead
      -- of this one or this one is behind, and the call is decided as at the beginning of that
      -- slot. The stored rule still records when that slot began, and whose clock dated it.
      -- needs: coarse era gone grain held instant lent longest mark more newest now others present series signed slack slot text theirs
      -- sets: era present slot text held gone others newest slack
      if instant - coarse >= now and (mark == '@' or signed == '@') then
        present = instant - coarse + 1
        slot = present - present % grain + grain - 1
      end
      local behind = present > now
      if instant > slot then
        slot = instant
        behind = signed == '@'
        text = string.format('%d/%d%s', longest, coarse, signed)
      elseif behind then
        text = string.format('%d/%d@', longest, slot - present + 1)
      end
      if behind then slack = math.max(slack, 1000) end
      gone = instant + theirs
      local own, beside = gone, ''
      for width, needed in string.gmatch(more, ' (%d+)/(%d+)') do
        local leaves = math.min(needed + 0, instant + width)
        gone = math.max(gone, leaves)
        if width + 0 > longest and leaves > present then
          held = math.max(held, width + 0)
          others = math.max(others, leaves)
          beside = string.format('%s %s/%d', beside, width, leaves)
        end
      end
      if theirs > longest and own > math.max(present, others) then
        held = math.max(held, theirs)
        others = own
        beside = string.format(' %d/%d%s', theirs, own, beside)
      end
      if era > 0 and era + held <= present then era = 0 end
      if lent and lent + held > present then -- see slice
        beside = beside .. '~' .. lent .. '/' .. series
      elseif era > 0 then
        beside = beside .. string.format('~%d/0%d', era, era)
      end
      text = text .. beside
      newest = math.min(instant, gone - longest) -- the full limit is back when the state is gone
      -- </others>
    end
    if exists and gone <= present then -- the state is no longer needed
      renew = true
      exists = false
      said = text
      instant = 0
      total = 0
      base = 0
      newest = 0
    end
    local left, under, alive = 0, base, oldest
    if exists and alive <= present - window then -- more entries have left the window, often just one
      if not last then
        first, last = bounds(key)
        if not last then return {err = corrupt} end
      end
      local edge, from, upto = present - held, 0, base
      while true do -- first under the longest window that anybody needs, then under this one
        if instant <= edge then
          from = last
          upto = total
        elseif alive <= edge then
          local guess = from + 1
          -- <search>
          -- Finds the last entry whose instant is not after the edge: its number (from), its
          -- total (upto), and the instant of the entry after it (alive). The search starts
          -- after the entry from, whose next entry is at alive. Each reading of two neighbours
          -- shows where to go on: first in proportion, then, if that takes too long, by halves.
          -- needs: alive budget call corrupt edge first from guess instant key last upto
          -- sets: alive budget from upto
          local low, lowAt, high, highAt, readings = from + 1, alive, last, instant, 0
          while true do
            local number = first + guess
            local pair = call('HMGET', key, string.format('%d', number), string.format('%d', number + 1))
            local at, sum = string.match(pair[1] or '', '^(%d+)/(%d+)$')
            at = tonumber(at)
            upto = tonumber(sum)
            alive = instant
            if guess + 1 < last then alive = tonumber((string.match(pair[2] or '', '^(%d+)/'))) end
            if not (at and upto and alive) then return {err = corrupt} end
            if at > edge then
              high = guess
              highAt = at
            elseif alive <= edge then
              low = guess + 1
              lowAt = alive
            else
              break
            end
            if low >= high then return {err = corrupt} end -- the entries are not in order
            readings = readings + 1
            local share = 1 / 2
            if readings < 4 then share = (edge - lowAt) / (highAt - lowAt) else budget = budget - 4 end
            guess = low + math.floor((high - low) * share)
          end
          from = guess
          -- </search>
        end
        if edge == present - held then
          forget = from
          base = upto
          oldest = alive
        end
        if edge == present - window then break end
        edge = present - window
      end
      left = from
      under = upto
    end
    local used, stored, recent = total - under, total, instant
    if not (used >= 0 and gone < 2 ^ 53) then return {err = corrupt} end -- "not", because it may be NaN
    if back then
      local where = amount
      -- <giveback>
      -- The totals from the ticket's entry on are rewritten, and an entry without permits goes.
      -- Only the last entry of a caller's clock stays as long as the clocks may be apart: without
      -- its instant, a clock that is behind would find the windows of that time unused again.
      -- If 512 entries or more came after the ticket's, nothing is given back: each takes 1 to 2 µs.
      -- Of a slice, nothing is unless the state has its id. Of a ticket, unless it has the era of its instant.
      -- needs: back bounds budget call corrupt era exists gone key present rule said slack where which
      -- sets: budget given
      local given = 0
      if exists and (which + 0 == (where + 0 > era and 0 or era) or string.match(said, '~%d+/0?(%d+)') == which) then
        local zero, number = bounds(key)
        local ends = call('HMGET', key, 'instant', 'total', 'base')
        local at, sum, read = ends[1] + 0, ends[2] + 0, 0
        if not number then return {err = corrupt} end
        local place, ats, sums, before, below = number, {}, {}, 0, ends[3] + 0
        -- The entries from the last one back to the ticket's, and the one before that.
        while at and at > where + 0 and place > 1 and read < 511 do
          ats[place] = at
          sums[place] = sum
          place = place - 1
          read = read + 1
          local entry = call('HMGET', key, string.format('%d', zero + place))[1]
          budget = budget - 3
          at, sum = string.match(entry or '', '^(%d+)/(%d+)$')
          at = tonumber(at)
          sum = tonumber(sum)
        end
        local own = 0
        if at == where + 0 then
          if place > 1 then
            local entry = call('HMGET', key, string.format('%d', zero + place - 1))[1]
            before, below = string.match(entry or '', '^(%d+)/(%d+)$')
            before = tonumber(before)
            below = tonumber(below)
            if not below then return {err = corrupt} end
          end
          ats[place] = at
          sums[place] = sum
          own = sum - below
        end
        given = math.min(back, own)
        if given > 0 then
          local stays = place == number and given == own and string.find(said, '@', 1, true)
          local gap = 0 -- the ticket's entry goes
          if given == own and not stays then gap = 1 end
          if stays then redis.call('HSET', key, 'rule', said .. '!') end
          if gap == 1 and number == 1 then
            redis.call('UNLINK', key)
          else
            local final = number - gap
            local moved = {}
            for i = place, final do
              if i < final then
                moved[#moved + 1] = string.format('%d', zero + i)
                moved[#moved + 1] = string.format('%d/%d', ats[i + gap], sums[i + gap] - given)
              end
            end
            local lastAt, lastSum = ats[number], sums[number] - given
            if place > final then -- the last entry goes
              lastAt = before
              lastSum = below
            end
            redis.call('HSET', key, 'instant', string.format('%d', lastAt), 'total', string.format('%d', lastSum),
              'last', string.format('%d', zero + final))
            if gap == 1 and place == 1 then redis.call('HSET', key, 'oldest', string.format('%d', ats[2])) end
            for i = 1, #moved, 1000 do
              redis.call('HSET', key, unpack(moved, i, math.min(i + 999, #moved)))
            end
            if gap == 1 then redis.call('HDEL', key, string.format('%d', zero + final)) end
            -- The last permit is an earlier one now, or there is none. An instant that stays before
            -- other permits keeps its TTL: other rules count from it when the state ends.
            local alone = given == own and (said == rule and number == 1 or said == rule .. '!' and number == 2)
            if alone or place == number and given == own and said == rule and not stays then
              local ttl = 0
              if not alone then ttl = math.max(gone - at + before - present, 0) / 1000 end
              redis.call('PEXPIRE', key, ttl - ttl % 2 + 901 + slack)
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
      -- A slice: how many of the requests it gets (times), and how long it lasts (long).
      -- needs: least limit long present slot times used
      -- sets: long times
      local fits = math.max(limit - used, 0)
      -- <span>
      -- How long a slice lasts: until the instant at which its permits are dated, at most.
      -- needs: fits least long present slot times
      -- sets: long
      times = math.min(times, math.max(math.min(fits, math.max(least, 1)), math.floor(fits / 4)))
      long = math.min(long, slot - present)
      if long < 1 then -- to be used at once
        times = math.min(times, math.max(least, 1))
        long = 0
      end
      -- </span>
      local some = times > 0
      if not some then times = 1 end
      -- <fit>
      -- needs: n times limit used
      -- sets: allowed before room
      local allowed, before = times, used
      local room = limit - used
      if n * allowed > room then
        allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
      end
      if not some then allowed = 0 end
      -- <seek>
      -- Computes when the entry leaves the window that makes room. It is an entry of this
      -- execution if the stored ones are not enough. Reads what the store needs too: after
      -- this block nothing is found to be corrupt.
      -- needs: alive allowed base bounds budget call corrupt exists first forget gone key last left limit n now oldest recent slot stored times under used window
      -- sets: base budget first forget last oldest wait
      local wait = 0
      if allowed < times then
        local over, leaves = used + (allowed + 1) * n - limit, slot -- so many permits have to leave
        if under + over <= stored then
          leaves = alive
          if over > 1 then
            local below, belowSum, goal = left, under, under + over
            -- <reach>
            -- Finds the instant (leaves) of the first entry whose total reaches the goal. It
            -- comes after the entry below, whose total is belowSum.
            -- needs: below belowSum bounds budget call corrupt first goal key last leaves recent stored
            -- sets: budget first last leaves
            if not last then
              first, last = bounds(key)
              if not last then return {err = corrupt} end
            end
            local above, aboveSum, readings = last, stored, 0
            local guess = math.min(below + goal - belowSum - 1, above - 1) -- right if entries have one permit each
            while true do
              local number = first + guess
              local pair = call('HMGET', key, string.format('%d', number), string.format('%d', number + 1))
              local sum = belowSum
              if guess > below then sum = tonumber((string.match(pair[1] or '', '/(%d+)$'))) end
              local after = stored
              leaves = recent
              if guess + 1 < last then
                local at, sumAt = string.match(pair[2] or '', '^(%d+)/(%d+)$')
                leaves = tonumber(at)
                after = tonumber(sumAt)
              end
              if not (sum and after and leaves) then return {err = corrupt} end
              if sum >= goal then
                above = guess
                aboveSum = sum
              elseif after < goal then
                below = guess + 1
                belowSum = after
              else
                break
              end
              if below >= above then return {err = corrupt} end -- the entries are not in order
              readings = readings + 1
              local share = 1 / 2
              if readings < 4 then share = (goal - 1 - belowSum) / (aboveSum - belowSum) else budget = budget - 4 end
              guess = below + math.floor((above - below) * share)
            end
            -- </reach>
          end
        end
        wait = leaves + window
        if allowed == 0 and wait > gone then wait = gone end
        wait = wait - now
      end
      if allowed > 0 and exists then
        if recent ~= slot and not last then -- the last entry gets a field of its own
          first, last = bounds(key)
          if not last then return {err = corrupt} end
        end
        if forget > 256 then -- the rest is for the next calls: so many fields take 60 µs
          local pair = call('HMGET', key, string.format('%d', first + 256), string.format('%d', first + 257))
          forget = 256
          base = tonumber((string.match(pair[1] or '', '/(%d+)$')))
          oldest = tonumber((string.match(pair[2] or '', '^(%d+)/')))
          if not (base and oldest) then return {err = corrupt} end
        end
      end
      -- <take>
      -- needs: n longest slot used total allowed others newest gone
      -- sets: used total newest gone
      used = used + allowed * n
      total = total + allowed * n
      if allowed > 0 then
        newest = slot
        gone = slot + longest
        if others > gone then gone = others end
      end
      size = size + 1
      out[size] = allowed > 0 and long or 0
      -- <words>
      -- needs: out size now newest allowed before wait
      -- sets: size
      out[size + 1] = allowed
      out[size + 2] = newest - now
      out[size + 3] = wait
      out[size + 4] = before
      size = size + 4
      -- <slice>
      -- The state says until when slices may be spent, and of which of them permits may come back: of
      -- those that have its id. That of the first slice is the id until the clock steps back (rewind), and then the era.
      -- needs: allowed era id long out size slot text
      -- sets: text
      out[size + 1] = slot
      out[size + 2] = 0
      if allowed > 0 and long > 0 then
        local plain, known = string.match(text, '^([^~]*)~?%d*/?(%d*)$')
        if known ~= '' and known ~= '0' then id = known end
        text = string.format('%s~%d/%s', plain, slot == era and slot + 1 or slot, id) -- the era itself would say: no slices
        out[size + 2] = era > 0 and era or id + 0
      end
      size = size + 2
      if allowed > 0 or repair then
        -- <store>
          -- needs: base budget exists first forget gone instant key last oldest present recent renew repair said slack slot stored text total
          -- sets: budget exists oldest renew total
          if repair then
            redis.call('HSET', key, 'rule', said, 'instant', string.format('%d', instant),
              'oldest', string.format('%d', oldest), 'last', string.format('%d', first + last))
          end
          local old = -1 -- the TTL
          if exists then old = redis.call('PTTL', key) end
          if total > stored then -- a call is allowed
            -- Totals only grow. Before they are too large to be exact, the permits that count under
            -- the longest rule begin a new log, as if taken now: they count for longer than they
            -- should, never for less.
            if total > 2 ^ 52 then
              renew = true
              exists = false
              total = math.min(total - base, 2 ^ 51)
            end
            local sum = string.format('%d', total)
            if renew then redis.call('UNLINK', key) end
            if not exists then
              local at = string.format('%d', slot)
              redis.call('HSET', key, 'rule', text, 'instant', at, 'total', sum, 'base', '0', 'oldest', at,
                'first', '0', 'last', '1')
            else
              if text ~= said then redis.call('HSET', key, 'rule', text) end
              if recent == slot then
                redis.call('HSET', key, 'total', sum)
                if forget > 0 then
                  redis.call('HSET', key, 'base', string.format('%d', base), 'oldest', string.format('%d', oldest),
                    'first', string.format('%d', first + forget))
                end
              else -- the last entry gets a field of its own
                local at, number = string.format('%d', slot), string.format('%d', first + last)
                local entry, following = string.format('%d/%d', instant, stored), string.format('%d', first + last + 1)
                if text ~= said and string.sub(said, -1) == '!' then -- it has no permits, and this one replaces it
                  following = number
                  if oldest == instant then
                    oldest = slot
                    redis.call('HSET', key, 'oldest', at)
                  end
                end
                if forget > 0 then
                  redis.call('HSET', key, 'instant', at, 'total', sum, 'base', string.format('%d', base),
                    'oldest', string.format('%d', oldest), 'first', string.format('%d', first + forget), 'last', following,
                    number, entry)
                else
                  redis.call('HSET', key, 'instant', at, 'total', sum, 'last', following, number, entry)
                end
              end
              if forget > 0 then -- the fields up to entry 0 are deleted sixteen at a time
                local numbers, number = {}, first - first % 16
                while number + 16 <= first + forget do
                  for i = 1, 16 do
                    numbers[#numbers + 1] = string.format('%d', number + i)
                  end
                  number = number + 16
                end
                if numbers[1] then redis.call('HDEL', key, unpack(numbers)) end
                budget = budget - #numbers / 2
              end
            end
          end
          -- The TTL is set to 0.9 s more than needed, so that a key in use needs it only about once
          -- a second. It is odd, because Redis 7.2.0 writes 100000000 as 1e+8.
          local ttl = (gone - present) / 1000
          ttl = ttl - ttl % 2 + slack
          if old < ttl + 50 or old > ttl + 950 then redis.call('PEXPIRE', key, ttl + 901) end
      else
        -- <expire>
          -- A denial repairs a lost TTL, and changes nothing else.
          -- needs: key present exists gone slack
          -- sets:
          if exists and redis.call('PTTL', key) == -1 then
            local ttl = (gone - present) / 1000
            redis.call('PEXPIRE', key, ttl - ttl % 2 + 901 + slack)
          end
      end
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
          -- After fit: as many requests as the debt has room for.
          -- needs: allowed n room times used
          -- sets: allowed
          room = 4e12 - used
          allowed = times
          if n * allowed > room then allowed = math.max((room - room % n) / n, 0) end
        end
        -- <seek>
        -- Computes when the entry leaves the window that makes room. It is an entry of this
        -- execution if the stored ones are not enough. Reads what the store needs too: after
        -- this block nothing is found to be corrupt.
        -- needs: alive allowed base bounds budget call corrupt exists first forget gone key last left limit n now oldest recent slot stored times under used window
        -- sets: base budget first forget last oldest wait
        local wait = 0
        if allowed < times then
          local over, leaves = used + (allowed + 1) * n - limit, slot -- so many permits have to leave
          if under + over <= stored then
            leaves = alive
            if over > 1 then
              local below, belowSum, goal = left, under, under + over
              -- <reach>
              -- Finds the instant (leaves) of the first entry whose total reaches the goal. It
              -- comes after the entry below, whose total is belowSum.
              -- needs: below belowSum bounds budget call corrupt first goal key last leaves recent stored
              -- sets: budget first last leaves
              if not last then
                first, last = bounds(key)
                if not last then return {err = corrupt} end
              end
              local above, aboveSum, readings = last, stored, 0
              local guess = math.min(below + goal - belowSum - 1, above - 1) -- right if entries have one permit each
              while true do
                local number = first + guess
                local pair = call('HMGET', key, string.format('%d', number), string.format('%d', number + 1))
                local sum = belowSum
                if guess > below then sum = tonumber((string.match(pair[1] or '', '/(%d+)$'))) end
                local after = stored
                leaves = recent
                if guess + 1 < last then
                  local at, sumAt = string.match(pair[2] or '', '^(%d+)/(%d+)$')
                  leaves = tonumber(at)
                  after = tonumber(sumAt)
                end
                if not (sum and after and leaves) then return {err = corrupt} end
                if sum >= goal then
                  above = guess
                  aboveSum = sum
                elseif after < goal then
                  below = guess + 1
                  belowSum = after
                else
                  break
                end
                if below >= above then return {err = corrupt} end -- the entries are not in order
                readings = readings + 1
                local share = 1 / 2
                if readings < 4 then share = (goal - 1 - belowSum) / (aboveSum - belowSum) else budget = budget - 4 end
                guess = below + math.floor((above - below) * share)
              end
              -- </reach>
            end
          end
          wait = leaves + window
          if allowed == 0 and wait > gone then wait = gone end
          wait = wait - now
        end
        if allowed > 0 and exists then
          if recent ~= slot and not last then -- the last entry gets a field of its own
            first, last = bounds(key)
            if not last then return {err = corrupt} end
          end
          if forget > 256 then -- the rest is for the next calls: so many fields take 60 µs
            local pair = call('HMGET', key, string.format('%d', first + 256), string.format('%d', first + 257))
            forget = 256
            base = tonumber((string.match(pair[1] or '', '/(%d+)$')))
            oldest = tonumber((string.match(pair[2] or '', '^(%d+)/')))
            if not (base and oldest) then return {err = corrupt} end
          end
        end
        -- <take>
        -- needs: n longest slot used total allowed others newest gone
        -- sets: used total newest gone
        used = used + allowed * n
        total = total + allowed * n
        if allowed > 0 then
          newest = slot
          gone = slot + longest
          if others > gone then gone = others end
        end
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
          -- The instant of the entry, and the era if that instant is used again in it.
          -- needs: era out size slot
          -- sets:
          out[size + 1] = slot
          out[size + 2] = slot <= era and era or 0
          size = size + 2
        end
        change = change or allowed > 0
        begin = stop
        permits, kind, amount, stop = string.match(operations, '^(%d+)([xec])(%d+),?()', begin)
      until not kind
      if change then
        -- <store>
          -- needs: base budget exists first forget gone instant key last oldest present recent renew repair said slack slot stored text total
          -- sets: budget exists oldest renew total
          if repair then
            redis.call('HSET', key, 'rule', said, 'instant', string.format('%d', instant),
              'oldest', string.format('%d', oldest), 'last', string.format('%d', first + last))
          end
          local old = -1 -- the TTL
          if exists then old = redis.call('PTTL', key) end
          if total > stored then -- a call is allowed
            -- Totals only grow. Before they are too large to be exact, the permits that count under
            -- the longest rule begin a new log, as if taken now: they count for longer than they
            -- should, never for less.
            if total > 2 ^ 52 then
              renew = true
              exists = false
              total = math.min(total - base, 2 ^ 51)
            end
            local sum = string.format('%d', total)
            if renew then redis.call('UNLINK', key) end
            if not exists then
              local at = string.format('%d', slot)
              redis.call('HSET', key, 'rule', text, 'instant', at, 'total', sum, 'base', '0', 'oldest', at,
                'first', '0', 'last', '1')
            else
              if text ~= said then redis.call('HSET', key, 'rule', text) end
              if recent == slot then
                redis.call('HSET', key, 'total', sum)
                if forget > 0 then
                  redis.call('HSET', key, 'base', string.format('%d', base), 'oldest', string.format('%d', oldest),
                    'first', string.format('%d', first + forget))
                end
              else -- the last entry gets a field of its own
                local at, number = string.format('%d', slot), string.format('%d', first + last)
                local entry, following = string.format('%d/%d', instant, stored), string.format('%d', first + last + 1)
                if text ~= said and string.sub(said, -1) == '!' then -- it has no permits, and this one replaces it
                  following = number
                  if oldest == instant then
                    oldest = slot
                    redis.call('HSET', key, 'oldest', at)
                  end
                end
                if forget > 0 then
                  redis.call('HSET', key, 'instant', at, 'total', sum, 'base', string.format('%d', base),
                    'oldest', string.format('%d', oldest), 'first', string.format('%d', first + forget), 'last', following,
                    number, entry)
                else
                  redis.call('HSET', key, 'instant', at, 'total', sum, 'last', following, number, entry)
                end
              end
              if forget > 0 then -- the fields up to entry 0 are deleted sixteen at a time
                local numbers, number = {}, first - first % 16
                while number + 16 <= first + forget do
                  for i = 1, 16 do
                    numbers[#numbers + 1] = string.format('%d', number + i)
                  end
                  number = number + 16
                end
                if numbers[1] then redis.call('HDEL', key, unpack(numbers)) end
                budget = budget - #numbers / 2
              end
            end
          end
          -- The TTL is set to 0.9 s more than needed, so that a key in use needs it only about once
          -- a second. It is odd, because Redis 7.2.0 writes 100000000 as 1e+8.
          local ttl = (gone - present) / 1000
          ttl = ttl - ttl % 2 + slack
          if old < ttl + 50 or old > ttl + 950 then redis.call('PEXPIRE', key, ttl + 901) end
      else
        -- <expire>
          -- A denial repairs a lost TTL, and changes nothing else.
          -- needs: key present exists gone slack
          -- sets:
          if exists and redis.call('PTTL', key) == -1 then
            local ttl = (gone - present) / 1000
            redis.call('PEXPIRE', key, ttl - ttl % 2 + 901 + slack)
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
    if failed == late then out[size] = -2 end
    done = size
  end
end
return out
