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
--          <permits>s<longest>        buckets: a reservation. Permits that do not fit yet are taken
--                                     too, if they fit within so many microseconds. A state that
--                                     promises permits says until when, so that no other rule
--                                     repays the debt at its own rate (inherit)
--          1z<wrote>|<before>         buckets: cancel a reservation, if the key still holds what that
--                                     wrote: then it gets what it held before, '' for nothing.
--                                     Otherwise others have reserved behind it and know their
--                                     instants, and the cancel waits for theirs (cancel)
-- Reply  for each key and operation:
--          x, c  the algorithm's words of a run. The first word is the number of requests
--                allowed, or charged: these are the first ones of the run
--          e     the same, and the two words of a ticket of the last request allowed
--          g     the permits given back, rounded up
--          d     the microseconds within which the permits may be spent, 0 for at once; the words
--                of a run of as many requests for one permit; the two words of a ticket
--          s     when the permits are due, microseconds from now; the words of a run of one
--                request; how many numbers follow, and these: none if nothing was taken; otherwise
--                4 of what the key holds (see receipt), and 8 of what it held, if anything
--          z     1 if the reservation was cancelled, 0 if not, or not yet
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
-- sets: capacity permit flow rule sub
local capacity, permit, flow, rule = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5]
local sub = string.sub
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
    local call = call
    local wrote, before, behind, gets, undone, waiting
    if kind == 'z' then
      wrote, before, behind = string.match(operations, '^1z([^|]*)|([^,]*),?()', begin)
      local held = call('GET', key)
      if held and held.err then return held end
      -- <cancel>
      -- Cancels a reservation: the key gets what it held before, if it holds what the reservation wrote.
      -- If others have reserved behind it, they know their instants, and the key may hold that again only
      -- when they have cancelled too. Until then the cancel waits in the state. So it is one that comes
      -- late, and nothing more: nobody's instant depends on it, and it may be lost.
      --   gets     what the key gets, without the cancels that wait; nil if nothing changes
      --   waiting  those: ";", then "<wrote>|<before>;" for each; two of reservations one behind the other
      --            are one
      -- needs: before gets held undone waiting wrote
      -- sets: gets undone waiting
      local last, rest = string.match(held or '', '^([^;]*);?(.*)$')
      undone = last == wrote
      waiting = ';' .. rest
      if undone then
        gets = before
        local from, to = string.find(waiting, ';' .. gets .. '|', 1, true)
        while from do -- the reservation in front of it was cancelled before
          gets = string.match(waiting, '^[^;]*', to + 1)
          waiting = string.sub(waiting, 1, from) .. string.sub(waiting, to + #gets + 2)
          from, to = string.find(waiting, ';' .. gets .. '|', 1, true)
        end
        if waiting == ';' or not string.find(gets, '!', 1, true) then waiting = '' end
      elseif string.find(last, '!', 1, true) then
        gets = last
        local restores = before
        local from, to = string.find(waiting, ';' .. restores .. '|', 1, true)
        if from then
          restores = string.match(waiting, '^[^;]*', to + 1)
          waiting = string.sub(waiting, 1, from) .. string.sub(waiting, to + #restores + 2)
        end
        from, to = string.find(waiting, '|' .. wrote .. ';', 1, true)
        if from then
          waiting = string.sub(waiting, 1, from) .. restores .. string.sub(waiting, to)
        else
          waiting = waiting .. wrote .. '|' .. restores .. ';'
        end
        -- Those that have waited for longest are lost.
        if #waiting > 16000 then waiting = string.match(waiting, '(;.*)$', -16000) end
      end
      call = function() -- load reads what the key gets
        return gets and gets ~= '' and gets
      end
    end
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
    if back then
      local where = amount
      -- <giveback>
      -- which is '1' if the bucket may have refilled what was held since the instant where, and above
      -- that the epoch of a slice.
      -- While permits are promised, nothing is given back: waiting callers know their instants, and
      -- the next caller would get the same ones (operations.lua).
      -- needs: back flow key margin missing permit present repair rule slices state sub theirs where which writes
      -- sets: given missing present repair state
      -- <spare>
      -- How many of the permits that are given back the slices that are out leave room for: of a slice all
      -- or none, of an estimate as many as were spare since the older epoch began, of a credit (where is '') none.
      -- needs: back present slices state theirs where which
      -- sets: returns state
      local returns = back
      if slices then
        returns = 0
        local since
        for of, age, slack in string.gmatch(slices.epochs, ',(%d+),(%d+),(%d+)') do
          if of == which and slack + 0 >= back then returns = back end
          if not since then since = slices.from - age end
          if which + 0 < 2 and where ~= '' and where + 0 >= since and returns == 0 then returns = math.min(slack, back) end
        end
        if theirs then returns = 0 end
        if which + 0 < 2 and present >= slices.ends then returns = back end
        if returns > 0 then
          state = string.gsub(state, '(,%d+,%d+,)(%d+)', function(of, slack)
            return string.format('%s%d', of, math.max(slack - returns, 0))
          end)
        end
      elseif which + 0 > 1 then
        returns = 0
      end
      -- </spare>
      local less, given = returns * permit, 0
      if which == '1' then
        less = less - (present - where) * flow
        if present < where + 0 or theirs then less = 0 end -- how much was refilled is not known
      end
      if less > 0 and missing > 0 and (writes == rule or not string.find(writes, '!', 1, true)) then
        given = math.ceil(math.min(less, missing) / permit)
        if theirs then theirs.full = math.max(theirs.less(returns), 0) end
        missing = math.max(missing - less, 0)
        if not theirs and sub(state, -#rule) == rule then -- the same for a state of this rule
          local ttl, at = missing / flow / 1000 + margin, sub(state, 1, 17)
          if repair then at = string.format('%016d/', present) end
          local level = math.max(sub(state, 18, -#rule - 1) - less, 0)
          redis.call('SET', key, at .. string.format('%d', level) .. rule, 'PX', ttl - ttl % 2 + 3)
        else
          local lessPart = less % permit
          less = (less - lessPart) / permit
          -- <lower>
          -- The state keeps its rule and its instant, with fewer permits missing then: as one of a
          -- slower rule, or of now, it would take from a faster rule what has been refilled since.
          -- needs: less lessPart present repair state
          -- sets:
          local at, level, units, rest, unit = string.match(state, '^(%d+)/(%d+)(%+?%d*)(/(%d+).*)$')
          if units == '' then -- a state of bucket.lua
            level = math.max(level - less * unit - lessPart, 0)
          else
            level = level - less
            units = units - lessPart
            if units < 0 then
              level = level - 1
              units = units + unit
            end
            if level < 0 then
              level = 0
              units = 0
            end
            units = string.format('+%d', units)
          end
          if not repair then present = tonumber(at, 10) end
          repair = true
          state = string.format('%s/%d%s%s', at, level, units, rest)
          -- </lower>
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
      -- A slice: how many of the requests it gets (times), at least the waiting ones if they fit, and for
      -- how long (long). It is dated at its end: then at least so much is missing as is restored until then.
      -- Where that leaves no room, waiting requests get permits to be used at once, as by a take.
      -- It may last longer than it has to if so much is missing anyway: then that costs nothing. An eighth
      -- of the capacity and its own permits are kept for what comes back: at most what is missing beyond
      -- what is restored until the end (mark).
      -- needs: capacity flow long least missing permit shortest times
      -- sets: long missing spared times
      if long > shortest + 0 then
        local free = math.max(shortest, math.min(long, math.floor((missing - capacity / 8 - times * permit) / flow)))
        times = math.max(math.min(times, least), math.floor(times * free / long))
        long = free
      end
      local floor = math.max(missing, long * flow)
      local spared = (missing - long * flow) / permit
      local fits = math.floor((capacity - floor) / permit)
      times = math.min(times, math.max(math.min(fits, least), math.floor(fits / 4)))
      if times < 1 or long == 0 then
        long = 0
        times = math.max(math.min(least, math.floor((capacity - missing) / permit)), 0)
      elseif floor > missing then
        missing = floor
      end
      local some = times > 0
      if not some then times = 1 end
      -- <fit>
      -- needs: n times capacity permit missing
      -- sets: allowed before cost room
      local cost, allowed, before = n * permit, times, missing
      local room = capacity - missing
      if cost * allowed > room then -- room is below 0 if a larger burst was used
        allowed = math.max((room - room % cost) / cost, 0)
      end
      if not some then allowed = 0 end
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
      size = size + 1
      out[size] = allowed > 0 and long or 0
      -- <words>
      -- needs: out size allowed before late filled
      -- sets: size
      out[size + 1] = allowed
      out[size + 2] = before
      out[size + 3] = late
      out[size + 4] = filled
      size = size + 4
      -- <slice>
      -- needs: allowed capacity flow id long out permit present size slices spared writes
      -- sets: writes
      local dated, turn, burst = present, capacity / flow, capacity / permit
      spared = math.floor(spared)
      -- <mark>
      -- After a slice was taken, writes says until when slices may be spent, and how many permits may come
      -- back: "~" and the microseconds after the state's instant until the last one ends; then of two epochs,
      -- the older one first, ",<id>,<microseconds since it began>,<slack>". The slack is the least that was
      -- missing since, beyond what had to be: all of a slice's permits can come back if as much has
      -- been spare ever since it was taken. The id comes with the call, so that no clock and no
      -- key that is gone decides in which epoch a slice began.
      -- needs: allowed dated id long present slices spared turn writes burst
      -- sets: epoch writes
      local epoch = 0
      if allowed > 0 and long > 0 then
        local plain, promised = string.match(writes, '^([^~!]*)[^!]*(.*)$')
        local ends, older, newer = present + long, ''
        if slices then
          ends = math.max(ends, slices.ends)
          for of, began, slack in string.gmatch(slices.epochs, ',(%d+),(%d+),(%d+)') do
            older = newer or ''
            newer = string.format(',%s,%s,%d', of, began, math.max(math.min(slack, spared), 0))
            epoch = began + 0 < turn and of or 0
          end
        end
        if epoch == 0 then
          epoch = id
          older = newer or ''
          newer = string.format(',%s,0,%d', id, burst)
        end
        writes = string.format('%s~%d%s%s%s', plain, ends - dated, older, newer, promised)
      end
      -- </mark>
      out[size + 1] = 0
      out[size + 2] = epoch + 0
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
    elseif kind == 's' then
      local n, times = permits + 0, 1
      -- <fit>
      -- needs: n times capacity permit missing
      -- sets: allowed before cost room
      local cost, allowed, before = n * permit, times, missing
      local room = capacity - missing
      if cost * allowed > room then -- room is below 0 if a larger burst was used
        allowed = math.max((room - room % cost) / cost, 0)
      end
      -- <due>
      -- When the permits fit, microseconds from now, and the instant that the state gets.
      -- needs: present missing lag capacity flow cost
      -- sets: due stamp
      local due, stamp = 0, present
      local over = missing + cost - capacity
      if over > 0 then due = lag + (over + -over % flow) / flow end
      size = size + 1
      out[size] = due
      if due <= amount + 0 then allowed = 1 end
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
      size = size + 1
      if allowed > 0 then
        local promise = due > 0 and now + due - stamp or 0
        if writes ~= rule then
          local plain, promised = string.match(writes, '^(.*)!(%d+)$')
          writes = plain or writes
          promise = math.max(promised or 0, promise)
        end
        if promise > 0 then
          -- <waiting>
          -- The cancels that wait pass from one reservation to the next, but for those whose permits have been
          -- restored by now, of which nothing would come back; and no more than 4,000 bytes, because each
          -- reservation reads and writes them.
          -- needs: now state sub waiting
          -- sets: waiting
          local from = state and string.find(state, ';', 1, true)
          waiting = from and sub(state, from) or ''
          if #waiting > 4000 then waiting = string.match(waiting, '(;.*)$', -4000) end
          while #waiting > 1 do
            local at, level, units, unit, speed, step = string.match(waiting, '^;(%d+)/(%d+)%+?(%d*)/(%d+)/(%d+)/?(%d*)')
            if not at then
              waiting = ''
              break
            end
            if units ~= '' then level = (level + 1) * unit end
            if level / speed + (tonumber(step) or 0) > now - tonumber(at, 10) then break end -- a sum would lose parts of a microsecond
            waiting = string.match(waiting, '^;[^;]*(.*)$')
          end
          if waiting == ';' then waiting = '' end
          writes = writes .. string.format('!%d', promise) .. waiting
        end
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
        out[size] = 4
        -- <receipt>
        -- After the store: what the key holds, and what it held before, if anything: instant, permits or
        -- units, units or -1, and after the latter the rule; whose kind is -2 without a mark, -1 for "@".
        -- Then the promise. See State.
        -- needs: flow mark missing out permit promise rule size spare stamp state sub
        -- sets: size
        out[size + 1] = stamp
        out[size + 2] = missing
        out[size + 3] = -1
        out[size + 4] = promise
        size = size + 4
        if state and sub(state, -#rule) == rule and tonumber(sub(state, 18, -#rule - 1)) then -- of this rule, which has no steps
          out[size - 4] = 12
          out[size + 1] = tonumber(sub(state, 1, 16), 10)
          out[size + 2] = sub(state, 18, -#rule - 1) + 0
          out[size + 3] = -1
          out[size + 4] = permit
          out[size + 5] = flow
          out[size + 6] = 0
          out[size + 7] = mark == '' and -2 or spare == 1000 and -1 or spare
          out[size + 8] = 0
          size = size + 8
        elseif state then
          out[size - 4] = 12
          local at, permits, units, unit, speed, step, kind, promised =
            string.match(state, '^(%d+)/(%d+)%+?(%d*)/(%d+)/(%d+)/?(%d*)(@?%d*)!?(%d*)')
          out[size + 1] = tonumber(at, 10)
          out[size + 2] = permits + 0
          out[size + 3] = tonumber(units) or -1
          out[size + 4] = unit + 0
          out[size + 5] = speed + 0
          out[size + 6] = tonumber(step) or 0
          out[size + 7] = kind == '' and -2 or tonumber(sub(kind, 2)) or -1
          out[size + 8] = tonumber(promised) or 0
          size = size + 8
        end
      else
        if repair then
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
        out[size] = 0
      end
    elseif wrote then
      stop = behind
      if gets then
        -- <remains>
        -- Of a state that is restored, as load has read it, in milliseconds.
        -- needs: flow margin missing theirs
        -- sets: remains
        local remains = missing / flow / 1000 + margin
        if theirs then remains = theirs.full / 1000 + margin end
        if state and remains > 0 then
          redis.call('SET', key, state .. waiting, 'PX', remains - remains % 2 + 3)
        else
          redis.call('UNLINK', key)
        end
      end
      size = size + 1
      out[size] = undone and 1 or 0
    else
      local change = repair
      repeat
        local n, times = permits + 0, amount + 0
        -- <fit>
        -- needs: n times capacity permit missing
        -- sets: allowed before cost room
        local cost, allowed, before = n * permit, times, missing
        local room = capacity - missing
        if cost * allowed > room then -- room is below 0 if a larger burst was used
          allowed = math.max((room - room % cost) / cost, 0)
        end
        if kind == 'c' then
          -- <charge>
          -- After fit: as many requests as the debt has room for. A debt takes 71 years at most, and the
          -- numbers stay exact.
          -- needs: allowed cost flow missing room times
          -- sets: allowed
          room = math.min(2 ^ 52 - 1, 2 ^ 51 * flow) - missing
          allowed = times
          if cost * allowed > room then allowed = math.max((room - room % cost) / cost, 0) end
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
        if kind == 'e' then
          -- <ticket>
          -- The instant up to which the refill is counted.
          -- needs: out size present
          -- sets:
          out[size + 1] = present
          out[size + 2] = 0
          size = size + 2
        end
        change = change or allowed > 0
        begin = stop
        permits, kind, amount, stop = string.match(operations, '^(%d+)([xec])(%d+),?()', begin)
      until not kind
      if change then
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
