-- Requests to several limiters at once, decided as if made one after the other: each
-- request takes its permits from every limiter, or from none. The limiters are decided
-- one inside the other (all_limiter.lua): every key is read before any is written.
--
-- KEYS   for each request the key of each limiter
-- ARGV   the limiters' own, in their order; then for each request: for how many equal
--        requests it stands, and the permits for each limiter, of one in flight
--        "<permits>h<id>"; last spare and the caller's clock, if that decides
--        (callersclock.lua)
-- Reply  for each request and each limiter, from the last limiter to the first: how many
--        of the equal requests this limiter alone would allow, then its words of a run,
--        whose first one is the number that all limiters allow. For a request that
--        failed there is one -1 instead, and its keys were left as they were (unless Redis
--        refused a command that comes after the first command that writes). There is one -2
--        for a request for which there was no time, see many.lua
local call = redis.pcall
local budget, late = 500, {}
-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- <shape>
local limiters, configured = 2, 6
local out, size = {}, 0

local function decide(skipped, request)
  if budget < 0 then return late end
  local times = ARGV[request] + 0
  local all = times
  -- <limiters>
  do
    -- <request>
    local key, n, times = KEYS[skipped + 1], ARGV[request + 1] + 0, times
    -- <config>
    -- needs:
    -- sets: capacity permit flow rule sub
    local capacity, permit, flow, rule = ARGV[-1 + 2] + 0, ARGV[-1 + 3] + 0, ARGV[-1 + 4] + 0, ARGV[-1 + 5]
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
    --   slices   what the state says of slices, see inherit
    -- needs: call key now mark spare capacity permit flow rule sub
    -- sets: state present missing lag repair slices theirs writes margin
    local present, missing, lag, repair, theirs, writes, margin, slices = now, 0, 0, false, nil, rule, spare
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
        local grain, offset, latest = 1, 0, now
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
        -- Until the last promised instant, and until the last slice ends that is out, a faster rule computes
        -- backwards from the level at that instant: it restores nothing of what is promised to others. If the
        -- instant is within a step of the writer, begun is how much of the step has passed by then, and the
        -- writer's steps go on from there. slices is what the state says about slices (see lease): the
        -- instant at which the last one ends, and the epochs as the store writes them.
        -- needs: now mark state permit flow every grain offset latest burst rule sub divide after present lag repair slices theirs writes margin whole part
        -- sets: lag margin part present promise repair same slices theirs whole writes
        local written, permits, units, unit, speed, step, kind, leased, promise, stop =
          string.match(state, '^(%d+)/(%d+)%+?(%d*)/([1-9]%d*)/([1-9]%d*)/?(%d*)(@?%d*)(~?[%d,]*)!?(%d*)()')
        local complete = written and (stop > #state or promise ~= '' and sub(state, stop, stop) == ';') -- see cancel
        local ends, epochs = string.match(leased or '', '^~(%d+)([%d,]*)$')
        if not complete or #written > 16 or stop - #leased > 131 or #leased > 110 or leased ~= '' and not ends then
          return {err = 'CORRUPT no state of a bucket'}
        end
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
        leased = tonumber(ends)
        local promised = promise
        promise = math.max(promise, leased or 0)
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
            repair = written > latest
            written = math.min(written, latest)
          else -- a caller's clock is ahead
            lag = written - now
            present = written
          end
        end
        local due, begun, given, restored = written + promise, 0
        if leased then slices = {ends = written + leased, from = written} end
        promised = promised > 0 and written + promised or 0
        local same = (promise > 0 or leased) and unit == permit and speed == flow and step == every
        same = same and (mark ~= '' or kind == '')
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
        local counts = age + (written - offset) % grain -- from the instant at which this rule's steps are counted
        local passed = counts - counts % every
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
        local dates = counted -- the instant of a state that is written at present
        if grain > 1 then
          dates = present
          counted = present - (present - offset) % every
        end
        if leased then
          local old
          slices.epochs = ''
          if same then
            for id, began, slack in string.gmatch(epochs, ',(%d+),(%d+),(%d+)') do
              old = began + dates - slices.from
              slices.epochs = string.format('%s,%s,%d,%d', slices.epochs, id, old, math.min(slack, whole))
            end
          end
          -- What is left of a slice comes back soon after its end: its epoch began at most a refill before it.
          if slices.ends > present or old and old < 2 * burst * permit / flow then
            writes = string.format('%s~%d%s', writes, math.max(slices.ends - dates, 0), slices.epochs)
          end
        end
        if promised > present then writes = writes .. string.format('!%d', promised - dates) end
        if due > present then
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
              return -counts - (early - early % every)
            end
            local writers = math.max(after(over, units, unit, speed, step) - begun, 0)
            return math.min(after(over, own, permit, flow, every) - counts, writers - age)
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
      local most, window = ARGV[3 + 2] + 0, ARGV[3 + 3] + 0
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
end

for i = 0, #KEYS / limiters - 1 do
  local before = size
  local ok, failed = pcall(decide, i * limiters, configured + 1 + i * (limiters + 1))
  if not ok or failed then
    if ok and failed.outside then return failed end -- of calendarwindow.lua: nothing was done
    for j = before + 2, size do
      out[j] = nil
    end
    size = before + 1
    out[size] = -1
    if failed == late then out[size] = -2 end
  end
end
return out
