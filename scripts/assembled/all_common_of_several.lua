-- Requests to several limiters that all have the same key of one limiter, as one for all
-- users: all.lua, but that key is read once and written once. KEYS and ARGV are the same;
-- in the reply the words of the limiter with the common key are the last of a request.
-- All requests have equal arguments of that limiter.
local call = redis.pcall
-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- <shape>
local limiters = 3
local common = 3
local out, size = {}, 0
local ahead = #ARGV - #KEYS / limiters * (limiters + 2) -- ARGV in front of the requests

-- The other limiters decide, and so many of the equal requests at most are allowed.
local function inner(skipped, request, times, all)
  local front = ARGV[request + limiters + 1] + 0
  -- <limiters>
  do
    -- <request>
    local key, n, times = KEYS[skipped + 1], ARGV[request + 1] + 0, times
    -- <config>
    -- needs:
    -- sets: capacity permit flow rule sub
    local capacity, permit, flow, rule = ARGV[front + -1 + 2] + 0, ARGV[front + -1 + 3] + 0, ARGV[front + -1 + 4] + 0, ARGV[front + -1 + 5]
    local sub = string.sub
    -- <load>
    -- The blocks after it use:
    --   present  the instant that decides: now, or the state's if a caller's clock is ahead
    --   missing  units missing at present
    --   lag      how far now is behind present
    --   repair   the clock stepped back: the state's instant becomes now
    --   theirs   another rule wrote the state, see inherit
    --   writes   the rule as the store writes it
    --   margin   what the TTL is longer by, milliseconds
    -- needs: call key now mark spare capacity permit flow rule sub
    -- sets: state present missing lag repair theirs writes margin
    local present, missing, lag, repair, theirs, writes, margin = now, 0, 0, false, nil, rule, spare
    local state = call('GET', key)
    if state then
      if state.err then return state end
      local from = -#rule
      -- The base keeps miniredis from reading leading zeros as octal.
      local at, level = tonumber(sub(state, 1, 16), 10), tonumber(sub(state, 18, from - 1))
      -- Corrupt numbers are left to inherit: the sum is below 2^53 for no infinity and no nan.
      if at and level and at + level < 2 ^ 53 and sub(state, from) == rule then
        if at > now then
          if mark == '' then
            repair = true
            at = now
          else
            lag = at - now
            present = at
          end
        end
        missing = level - (present - at) * flow
        if missing < 0 then missing = 0 end
      else
        local burst, every, whole, part = capacity / permit, 1
        -- <arithmetic>
        -- needs:
        -- sets: divide after
        -- divide returns a * b / c as a whole number, and the remainder. A product beyond 2^53 is
        -- divided digit by digit of b; then c is below 2^51.
        local function divide(a, b, c)
          local product = a * b
          if product < 2 ^ 53 then
            local remainder = product % c
            return (product - remainder) / c, remainder
          end
          local base, top = 128, 1
          if c >= 2 ^ 45 then base = 2 end
          while top * base <= b do
            top = top * base
          end
          local less = a % c
          local quotient, remainder = 0, 0
          while top >= 1 do
            local sum = remainder * base + less * (math.floor(b / top) % base)
            remainder = sum % c
            quotient = quotient * base + (sum - remainder) / c
            top = top / base
          end
          return quotient + (a - less) / c * b, remainder
        end
        -- after returns how many microseconds it takes to restore so many permits and units, in
        -- steps.
        local function after(permits, units, unit, speed, step)
          local quotient, remainder = divide(permits, unit, speed)
          local micros = quotient + math.ceil((remainder + units) / speed)
          return micros + -micros % step
        end
        -- </arithmetic>
        -- <inherit>
        -- Reads a state that another rule wrote. Until a request is allowed, the bucket goes on
        -- by the faster of that rule and this one: whole and part, the permits and units
        -- missing at present, are the smaller of the two results. Parts of a permit are
        -- rounded up, so that a changed rule never allows more. theirs is what the state says:
        -- the instant up to which the refill is counted (since), the time until the bucket is
        -- full by the writer's rule (full), and until so many permits fit (wait). same:
        -- the rule is this one, but the state promises permits, and so does not end with it.
        -- A server's clock keeps the mark of a caller's in the state, and the time by which its
        -- TTL is longer: callers whose clocks are behind use the key too.
        -- Until the last promised instant, a faster rule computes backwards from the level at that
        -- instant: it restores nothing of what is promised to others. If the instant is within a step of the
        -- writer, begun is how much of the step has passed by then, and the writer's steps go on from there.
        -- needs: now mark state permit flow every burst rule sub divide after present lag repair theirs writes margin whole part
        -- sets: lag margin part present promise repair same theirs whole writes
        local written, permits, units, unit, speed, step, kind, promise, stop =
          string.match(state, '^(%d+)/(%d+)%+?(%d*)/([1-9]%d*)/([1-9]%d*)/?(%d*)(@?%d*)!?(%d*)()')
        local complete = written and (stop > #state or promise ~= '' and sub(state, stop, stop) == ';') -- see cancel
        if not complete or #written > 16 or stop > 131 then return {err = 'CORRUPT no state of a bucket'} end
        written = tonumber(written, 10)
        permits = permits + 0
        unit = unit + 0
        speed = speed + 0
        step = math.max(tonumber(step) or 1, 1)
        if units == '' then -- a state of bucket.lua
          units = permits % unit
          permits = (permits - units) / unit
        end
        units = units + 0
        promise = tonumber(promise) or 0
        -- Beyond these bounds, which no bucket reaches, numbers would not be exact.
        local full = 2 ^ 53
        if permits + unit + speed + step + promise < full and units < unit then
          full = after(permits, units, unit, speed, step)
        end
        if full >= 2 ^ 53 then return {err = 'CORRUPT no state of a bucket'} end
        if mark == '' and kind ~= '' then
          writes = rule .. kind
          margin = math.min(tonumber(sub(kind, 2)) or 1000, 86400000)
        end
        if written > now then
          if mark == '' and kind == '' then -- the clock stepped back
            repair = true
            written = now
          else -- a caller's clock is ahead
            lag = written - now
            present = written
          end
        end
        local due, begun, given, restored = written + promise, 0
        local same = promise > 0 and unit == permit and speed == flow and step == every and (mark ~= '' or kind == '')
        if promise > 0 and flow * unit > speed * permit then
          begun = promise % step
          given, restored = divide(promise - begun, speed, unit)
          permits = permits - given
          units = units - restored
          if units < 0 then
            permits = permits - 1
            units = units + unit
          end
          if permits < 0 then
            permits = 0
            units = 0
          end
          written = due
          full = math.max(after(permits, units, unit, speed, step) - begun, 0)
        end
        local own, cut = divide(units, permit, unit) -- the units, in those of this rule
        if cut > 0 then own = own + 1 end
        local age = present - written -- below 0 while a slower rule's permits are promised
        local passed = age - age % every
        given, restored = divide(math.abs(passed), flow, permit)
        if passed < 0 then
          given = -given
          restored = -restored
        end
        whole = permits - given
        part = own - restored
        if part < 0 then
          whole = whole - 1
          part = part + permit
        end
        if age >= 0 then
          local theirPassed = age + begun - (age + begun) % step
          given, restored = divide(theirPassed, speed, unit)
          local theirWhole, theirPart = permits - given, units - restored
          if theirPart < 0 then
            theirWhole = theirWhole - 1
            theirPart = theirPart + unit
          end
          theirPart, cut = divide(theirPart, permit, unit)
          if cut > 0 then theirPart = theirPart + 1 end
          if theirWhole < whole or theirWhole == whole and theirPart < part then
            whole = theirWhole
            part = theirPart
            passed = theirPassed - begun
          end
        end
        if part >= permit then
          whole = whole + 1
          part = part - permit
        end
        -- A step of this rule's from then on; no state holds an instant before 1970.
        local counted = math.max(present - (age - passed) % every, 0)
        if whole < 0 or whole + part == 0 then
          whole = 0
          part = 0
          counted = present
        end
        if due > present then
          writes = writes .. string.format('!%d', due - counted)
          -- The key lives as long as the promise, which may be another rule's.
          local filled = math.min(full - age, counted - present + after(whole, part, permit, flow, every))
          margin = margin + math.max(due - present - filled, 0) / 1000
        end
        theirs = {
          since = counted,
          full = full - age,
          wait = function(wanted)
            local over = permits + wanted - burst
            if over < 0 then -- it fits before the last promised permit is due
              local early, left = divide(-over, permit, flow)
              early = early + math.floor((left - own) / flow)
              return -age - (early - early % every)
            end
            local writers = math.max(after(over, units, unit, speed, step) - begun, 0)
            return math.min(after(over, own, permit, flow, every), writers) - age
          end,
          less = function(fewer)
            local left = permits - fewer
            if left < 0 then return 0 end
            return math.max(after(left, units, unit, speed, step) - begun, 0) - age
          end,
        }
        -- </inherit>
        missing = math.min(whole * permit + part, 2 ^ 53) -- with a larger burst it may be more
        if same and missing < 2 ^ 52 then theirs = nil end -- the answer says more by theirs
      end
    end
    -- <fit>
    -- needs: n times capacity permit missing
    -- sets: allowed before cost room
    local cost, allowed, before = n * permit, times, missing
    local room = capacity - missing
    if cost * allowed > room then -- room is below 0 if a larger burst was used
      allowed = math.max((room - room % cost) / cost, 0)
    end
    if allowed < all then all = allowed end
    -- <inner>
    do
      -- <request>
      local key, n, times = KEYS[skipped + 2], ARGV[request + 2] + 0, times
      -- <config>
      -- needs:
      -- sets: most window
      local most, window = ARGV[front + 3 + 2] + 0, ARGV[front + 3 + 3] + 0
      -- <load>
      -- room is the difference of two counters. It is a multiple of 1,000,000 if the state
      -- is of a window of this length. The blocks after it use:
      --   left   milliseconds left of the window
      --   lasts  the same after a permit is taken under this rule
      --   open   the key goes on to count, with the TTL that it has
      --   taken  permits taken in this execution
      -- needs: call key most window
      -- sets: lasts left open repair room state taken
      local room, left, lasts, open, repair
      local taken = 0
      local state = call('GET', key)
      if state then
        if state.err then return state end
        local value = tonumber(state) or -1
        left = call('PTTL', key)
        lasts = left
        room = most - value
        -- INCRBY refuses a number of another form, such as 3e6: it has not so many digits.
        open = value < 10 ^ #state and value >= 10 ^ (#state - 1) and room % 1000000 == 0 and left > 0 and left <= window
        if not open then
          local theirs, slack, used = window, 1
          if value >= 0 then
            local code = value % 1000000
            if value < 2 ^ 53 and not string.find(state, '%D') then used = (value - code) / 1000000 end
            if room % 1000000 ~= 0 then
              local exponent = code % 10
              theirs = (code - exponent) / 10 * 10 ^ exponent
              if code >= 100000 then slack = 10 ^ exponent end -- of five digits, more may have been cut
            end
          else
            local longest, margin
            used, longest, margin = string.match(state, '^(%d+)/%d+/([1-9]%d*)@?(%d*)$') -- written by datedwindow.lua
            if used then
              theirs = longest / 1000
              slack = 3
              if left > 0 then left = math.max(left - 1 - (tonumber(margin) or 0), 0) end
            end
          end
          if not used or used % 1 ~= 0 then return {err = 'CORRUPT no state of a fixed window'} end
          lasts = left + window - theirs
          if left == -1 or left >= theirs + slack then -- no TTL, or the clock stepped back
            repair = true
            left = window
            lasts = window
          elseif left <= 0 or lasts <= 0 then -- that window is over
            used = 0
            left = window
            lasts = window
          elseif theirs > window then -- it goes on for that rule, which has taken permits
            left = lasts
            open = value >= 0
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
      -- <fit>
      -- needs: n times room
      -- sets: cost allowed before
      local cost, allowed, before = n * 1000000, times, room
      if cost * allowed > room then
        if room < 0 then before = 0 end -- the limit was lowered; permits taken stay taken
        allowed = (before - before % cost) / cost
      end
      if allowed < all then all = allowed end
      size = size + 1
      out[size] = allowed
      if allowed > all then -- another limiter allows fewer, and this one denies nothing
        allowed = all
        times = all
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
      if allowed > 0 or repair then
        -- <store>
          -- needs: key most room lasts open taken
          -- sets:
          if open then
            redis.call('INCRBY', key, taken .. '000000')
          else
            redis.call('SET', key, string.format('%d', most - room),
              'PX', string.format('%d', lasts))
          end
      else
      end
    end
    size = size + 1
    out[size] = allowed
    if allowed > all then -- another limiter allows fewer, and this one denies nothing
      allowed = all
      times = all
    end
    -- <take>
    -- needs: cost allowed missing repair theirs
    -- sets: missing repair theirs
    if allowed > 0 then -- the state becomes one of this rule
      missing = missing + allowed * cost
      repair = false
      theirs = nil
    end
    -- <wait>
    -- needs: n capacity permit lag theirs
    -- sets: late filled
    local late, filled = lag, 0
    if theirs then -- nothing was taken
      late = lag + theirs.wait(n)
      filled = lag + theirs.wait(capacity / permit)
    end
    -- <words>
    -- needs: out size allowed before late filled
    -- sets: size
    out[size + 1] = allowed
    out[size + 2] = before
    out[size + 3] = late
    out[size + 4] = filled
    size = size + 4
    -- <settle>
    -- The instant up to which the refill is counted.
    -- needs: out size present
    -- sets:
    out[size + 1] = present
    out[size + 2] = 0
    size = size + 2
    if allowed > 0 or repair then
      -- <store>
        -- needs: key flow sub state present missing repair theirs writes margin
        -- sets:
        local ttl, value = missing / flow / 1000 + margin
        if repair then -- nothing was taken
          if theirs then ttl = theirs.full / 1000 + margin end
          value = string.format('%016d', present) .. sub(state, 17)
        else
          value = string.format('%016d/%d%s', present, missing, writes)
        end
        -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
        -- as 1e+8.
        redis.call('SET', key, value, 'PX', ttl - ttl % 2 + 3)
    else
      -- <expire>
        -- A key that has lost its TTL gets one. To ask costs more than a twentieth of a denial,
        -- so one denial in sixteen does.
        -- needs: call key now flow missing theirs margin
        -- sets:
        if now % 16 == 0 and call('PTTL', key) == -1 then
          local ttl = missing / flow / 1000 + margin
          if theirs then ttl = theirs.full / 1000 + margin end
          redis.call('PEXPIRE', key, ttl - ttl % 2 + 3)
        end
    end
  end
  return nil, all
end

local function decide()
  local key = KEYS[common]
  local front = ARGV[ahead + limiters + 2] + 0 -- of the first request
  -- <config>
  -- needs: call
  -- sets: rule grain limit window longest corrupt bounds
  local rule, grain, limit, window = ARGV[front + 5 + 2], ARGV[front + 5 + 3] + 0, ARGV[front + 5 + 4] + 0, ARGV[front + 5 + 5] + 0
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
  --   gone, others    the instants at which the state is no longer needed, and at which
  --                   nobody else needs it
  --   left, under     the last entry that has left the window: its number, its total
  --   alive           the instant of the entry after it
  -- needs: bounds call corrupt grain key longest mark now rule spare window
  -- sets: alive base exists first forget gone instant last left newest oldest others present recent renew repair said slack slot stored text total under used

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
  local renew, kept, repair, forget = false, 0, false, 0
  -- Others have used the key, or the clock is behind.
  if said ~= rule or instant > slot then
    -- <writer>
    -- The rule that the state was written by, as far as it is another one.
    -- needs: rule grain mark longest said corrupt
    -- sets: theirs coarse signed more
    local theirs, coarse, signed, more = longest, grain, mark, ''
    if said ~= rule then
      theirs, coarse, signed, more = string.match(said or '', '^([1-9]%d*)/([1-9]%d*)(@?)(.*)$')
      if not theirs then return {err = corrupt} end
      theirs = theirs + 0
      coarse = coarse + 0
    end
    -- </writer>
    -- <rewind>
    -- The server's clock stepped back before the slot of the last entry: permits taken after
    -- that slot's present one count as taken in it.
    -- needs: bounds call coarse corrupt first instant kept key last mark now oldest repair signed
    -- sets: first instant last oldest repair
    if instant - coarse >= now and mark == '' and signed == '' then
      first, last = bounds(key)
      if not last then return {err = corrupt} end
      instant = now - now % coarse + coarse - 1
      if oldest < instant then
        kept = 1
        local high = last
        while high - kept > 1 do
          local middle = math.floor((kept + high) / 2)
          local entry = call('HMGET', key, string.format('%d', first + middle))[1]
          local at = tonumber((string.match(entry or '', '^(%d+)/')))
          if not at then return {err = corrupt} end
          if at < instant then kept = middle else high = middle end
        end
      else
        oldest = instant
      end
      last = kept + 1
      repair = true
    end
    -- </rewind>
    -- <others>
    -- What others need is kept. The last entry is never moved back: permits are dated at its
    -- instant until that has come. If its slot has not even begun, a caller's clock is ahead
    -- of this one or this one is behind, and the call is decided as at the beginning of that
    -- slot. The stored rule still records when that slot began, and whose clock dated it.
    -- needs: coarse gone grain held instant longest mark more newest now others present signed slack slot text theirs
    -- sets: present slot text held gone others newest slack
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
        -- needs: call key edge instant last corrupt from guess upto alive first
        -- sets: from upto alive
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
          if readings < 4 then share = (edge - lowAt) / (highAt - lowAt) end
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
  local change = repair
  -- A request that fails returns before it has taken anything.
  local function answer(i)
    local request = ahead + 1 + i * (limiters + 2)
    -- <request>
    local n, times = ARGV[request + common] + 0, ARGV[request] + 0
    -- <fit>
    -- needs: n times limit used
    -- sets: allowed before room
    local allowed, before = times, used
    local room = limit - used
    if n * allowed > room then
      allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
    end
    -- <seek>
    -- Computes when the entry leaves the window that makes room. It is an entry of this
    -- execution if the stored ones are not enough. Reads what the store needs too: after
    -- this block nothing is found to be corrupt.
    -- needs: alive allowed base bounds call corrupt exists first forget gone key last left limit n now oldest recent slot stored times under used window
    -- sets: base first forget last oldest wait
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
          -- needs: below belowSum bounds call corrupt first goal key last leaves recent stored
          -- sets: first last leaves
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
            if readings < 4 then share = (goal - 1 - belowSum) / (aboveSum - belowSum) end
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
      if forget > 1000 then -- the rest is for the next calls: a thousand fields take a tenth of a millisecond
        local pair = call('HMGET', key, string.format('%d', first + 1000), string.format('%d', first + 1001))
        forget = 1000
        base = tonumber((string.match(pair[1] or '', '/(%d+)$')))
        oldest = tonumber((string.match(pair[2] or '', '^(%d+)/')))
        if not (base and oldest) then return {err = corrupt} end
      end
    end
    local failed, all = inner(i * limiters, request, times, allowed)
    if failed then return failed end
    size = size + 1
    out[size] = allowed
    if allowed > all then -- another limiter allows fewer, and this one denies nothing
      allowed = all
      times = all
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
    change = change or allowed > 0
  end
  for i = 0, #KEYS / limiters - 1 do
    local sized = size
    local ok, failed = pcall(answer, i)
    if not ok or failed then
      if ok and failed.outside then return failed end -- of calendarwindow.lua: nothing was done
      for j = sized + 2, size do
        out[j] = nil
      end
      size = sized + 1
      out[size] = -1
    end
  end
  if change then
    -- <store>
      -- needs: base exists first forget gone instant key last oldest present recent renew repair said slack slot stored text total
      -- sets: exists oldest renew total
      if repair then
        redis.call('HSET', key, 'instant', string.format('%d', instant), 'oldest', string.format('%d', oldest),
          'last', string.format('%d', first + last))
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
          total = total - base
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
end

local ok, failed = pcall(decide)
if ok and failed and failed.outside then return failed end
if not ok or failed then -- the common key cannot be read or written
  out = {}
  for i = 1, #KEYS / limiters do
    out[i] = -1
  end
end
return out
