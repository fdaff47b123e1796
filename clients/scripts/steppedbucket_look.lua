-- Looks at a key for one request for one permit: takes nothing and writes nothing.
-- KEYS and ARGV are those of the algorithm's script, whose blocks replace the marked
-- lines. The reply is the words of a run of one request, before it has taken anything.
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall
local budget = 0 -- of an execution for many requests
-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- <config>
--   grain, offset  instants are rounded down to offset + multiples of grain where steps are counted
--   latest         a state that is dated later shows that the server's clock stepped back. Behind an
--                  aligned instant it is the next one, so that none gives a step twice: a bucket that
--                  is dated then lacks its step until then.
-- needs: now
-- sets: burst permit flow every rule grain offset latest sub divide after
local burst, permit, flow, every, rule = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0, ARGV[7]
local grain, offset, latest = 1, 0, now
if ARGV[6] ~= 'first' then
  grain = every
  offset = ARGV[6] + 0
  latest = now - (now - offset) % every + every
end
local sub = string.sub
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
local out, size = {}, 0
-- <load>
-- The blocks after it use:
--   present      the instant that decides: now, or the state's if a caller's clock is ahead
--   whole, part  permits and units missing at present
--   since        the last step; if none are aligned and the bucket is full, present
--   stamp        the instant that the state gets
--   repair       the clock stepped back: the state's instant becomes latest
--   theirs       another rule wrote the state, see inherit
--   writes       the rule as the store writes it
--   margin       what the TTL is longer by, milliseconds
--   slices       what the state says of slices, see inherit
-- needs: call key now mark spare burst permit flow every rule grain offset latest sub divide after
-- sets: state present whole part since stamp lag repair slices theirs writes margin
local present, whole, part, since = now, 0, 0, now
local lag, repair, theirs, writes, margin, slices = 0, false, nil, rule, spare
local state = call('GET', key)
if state then
  if state.err then return state end
  local at, level, rest
  if #state < 100 and sub(state, -#rule) == rule then
    at, level, rest = string.match(state, '^(%d+)/(%d+)%+(%d+)/')
  end
  at = tonumber(at, 10) -- without the base, leading zeros are octal in miniredis
  if at and at + level < 2 ^ 53 and rest + 0 < permit then -- inherit refuses other numbers
    if at > now then
      if mark == '' then
        repair = at > latest
        at = math.min(at, latest)
      else
        lag = at - now
        present = at
      end
    end
    at = at - (at - offset) % grain
    local passed = (present - at) - (present - at) % every
    local given, restored = divide(math.abs(passed), flow, permit)
    since = at + passed
    whole = level - given
    part = rest - restored
    if passed < 0 then -- the last step comes again
      whole = level + math.min(given, 2 ^ 52)
      part = rest + restored
    end
    if part < 0 then
      whole = whole - 1
      part = part + permit
    elseif part >= permit then
      whole = whole + 1
      part = part - permit
    end
    if whole < 0 or whole + part == 0 then -- full: the steps count from the next permit
      whole = 0
      part = 0
      since = present
    end
  else
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
    since = theirs.since
    if same then theirs = nil end
  end
end
local stamp = since
if grain > 1 then
  since = present - (present - offset) % every
  stamp = repair and latest or present
end
-- <fit>
-- needs: n times burst whole part
-- sets: allowed wholeBefore partBefore
local allowed, wholeBefore, partBefore = times, whole, part
local room = burst - whole
if part > 0 then room = room - 1 end
if n * allowed > room then -- room is below 0 if a larger burst was used
  allowed = math.max((room - room % n) / n, 0)
end
-- <wait>
-- needs: n now burst since lag theirs
-- sets: ago wait
local ago, wait = now - since, 0
if theirs then -- nothing was taken
  ago = -lag - theirs.wait(burst)
  wait = math.max(lag + theirs.wait(n), 1)
end
-- <words>
-- needs: out size allowed ago wait wholeBefore partBefore
-- sets: size
out[size + 1] = allowed
out[size + 2] = wholeBefore
out[size + 3] = partBefore
out[size + 4] = ago
out[size + 5] = wait
size = size + 5
return out
