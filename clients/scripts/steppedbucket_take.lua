-- Token bucket and leaky bucket of any rule: they may refill in steps, and one number need not
-- hold their units. (bucket.lua decides where both are not so.) An even refill has steps of a
-- microsecond. Steps count from the first permit taken from the full bucket, or come at the
-- multiples of a step from an offset: then they are aligned, and each state that is not full gets
-- a step at each of these instants after its own.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] burst, permits; [3] units a permit; [4] units that a
--          microsecond restores; [5] microseconds a step; [6] offset of aligned steps
--          from 1970, microseconds, or "first" for others; [7] the rule, as it stands in the
--          state; then what callersclock.lua needs, if the caller's clock decides
-- State    "<instant, 16 digits>/<permits missing then>+<units>", and the rule that wrote
--          it: "/<units a permit>/<units that a microsecond restores>/<microseconds a
--          step>", and "@" if a caller's clock wrote it, then spare if not 1000; then "!"
--          and for how many microseconds after the instant permits are promised, if they
--          are; then ";" and cancels that wait (cancel). In front of "!", "~" and what mark says of slices, if any are
--          out. The instant is that of the last step, and if steps are aligned that of the last
--          take: so a rule without these steps restores nothing for the time before it, and the
--          rule need not say that they are. A state with "!" or "~", and one of bucket.lua, is another rule's.
-- Reply    the words of a run
-- Words    requests allowed; permits and units missing before the run; microseconds since
--          the last step; 0. If another rule wrote the state and nothing was taken, the
--          last two are minus the time until the bucket is full, and the time until the
--          first denied request fits
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

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
-- </config>

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
-- </load>

-- <fit>
-- needs: n times burst whole part
-- sets: allowed wholeBefore partBefore
local allowed, wholeBefore, partBefore = times, whole, part
local room = burst - whole
if part > 0 then room = room - 1 end
if n * allowed > room then -- room is below 0 if a larger burst was used
  allowed = math.max((room - room % n) / n, 0)
end
-- </fit>

-- <take>
-- needs: n whole allowed present repair stamp theirs
-- sets: whole repair stamp theirs
if allowed > 0 then -- the state becomes one of this rule
  whole = whole + allowed * n
  if repair then stamp = present end
  repair = false
  theirs = nil
end
-- </take>

-- <wait>
-- needs: n now burst since lag theirs
-- sets: ago wait
local ago, wait = now - since, 0
if theirs then -- nothing was taken
  ago = -lag - theirs.wait(burst)
  wait = math.max(lag + theirs.wait(n), 1)
end
-- </wait>

if allowed > 0 or repair then
  -- <store>
  -- needs: key permit flow every sub after stamp state present whole part since repair theirs writes margin
  -- sets:
  local ttl, value = since + after(whole, part, permit, flow, every) - present
  if repair then -- nothing was taken
    if theirs then ttl = theirs.full end
    value = string.format('%016d', stamp) .. sub(state, 17)
  else
    value = string.format('%016d/%d+%d%s', stamp, whole, part, writes)
  end
  ttl = math.max(ttl / 1000, 0) + margin
  redis.call('SET', key, value, 'PX', ttl - ttl % 2 + 3)
  -- </store>
else
  -- <expire>
  -- A key that has lost its TTL gets one. One denial in sixteen looks.
  -- needs: call key now permit flow every after present whole part since theirs margin
  -- sets:
  if now % 16 == 0 and call('PTTL', key) == -1 then
    local ttl = since + after(whole, part, permit, flow, every) - present
    if theirs then ttl = theirs.full end
    ttl = ttl / 1000 + margin
    redis.call('PEXPIRE', key, ttl - ttl % 2 + 3)
  end
  -- </expire>
end

-- <answer>
-- needs: allowed ago wait wholeBefore partBefore
-- sets:
return {allowed, wholeBefore, partBefore, ago, wait}
-- </answer>

--[[ In place of the answer when a run of requests is decided:
-- <words>
-- needs: out size allowed ago wait wholeBefore partBefore
-- sets: size
out[size + 1] = allowed
out[size + 2] = wholeBefore
out[size + 3] = partBefore
out[size + 4] = ago
out[size + 5] = wait
size = size + 5
-- </words>

-- <due>
-- When the permits fit, microseconds from now.
-- needs: n now burst permit flow every after whole part since
-- sets: due
local due = 0
local over = whole + n - burst
if over > 0 or over == 0 and part > 0 then
  due = since + after(over, part, permit, flow, every) - now
end
-- </due>

-- <receipt>
-- After the store: what the key holds, and what it held before, if anything: instant, permits or
-- units, units or -1, and after the latter the rule; whose kind is -2 without a mark, -1 for "@".
-- Then the promise. See State.
-- needs: out part promise size stamp state sub whole
-- sets: size
out[size + 1] = stamp
out[size + 2] = whole
out[size + 3] = part
out[size + 4] = promise
size = size + 4
if state then
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
-- </receipt>

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
-- </cancel>
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
-- </waiting>

-- <remains>
-- Of a state that is restored, as load has read it, in milliseconds.
-- needs: after every flow margin part permit present since theirs whole
-- sets: remains
local remains = (since + after(whole, part, permit, flow, every) - present) / 1000 + margin
if theirs then remains = theirs.full / 1000 + margin end
-- </remains>

-- <lease>
-- A slice: how many of the requests it gets (times), at least the waiting ones if they fit, and for
-- how long (long). It is dated at its end: then at least so much is missing as is restored until then.
-- Where that leaves no room, waiting requests get permits to be used at once, as by a take.
-- It may last longer than it has to if so much is missing anyway: then that costs nothing. An eighth
-- of the burst and its own permits are kept for what comes back: at most what is missing beyond what
-- is restored until the end (mark).
-- needs: burst divide every flow long least part permit present shortest since times whole
-- sets: long part spared times whole
if long > shortest + 0 then
  local free = math.floor(((whole - burst / 8 - times) * permit + part) / flow) - (present - since)
  free = math.max(shortest, math.min(long, free))
  times = math.max(math.min(times, least), math.floor(times * free / long))
  long = free
end
local passed = present + long - since
local floor, rest = divide(passed - passed % every, flow, permit)
local spared, more = whole - floor, part - rest
if more < 0 then spared = spared - 1 end
if spared >= 0 then
  floor = whole
  rest = part
end
local fits = burst - floor
if rest > 0 then fits = fits - 1 end
times = math.min(times, math.max(math.min(fits, least), math.floor(fits / 4)))
if times < 1 or long == 0 then
  long = 0
  fits = burst - whole
  if part > 0 then fits = fits - 1 end
  times = math.max(math.min(least, fits), 0)
else
  whole = floor
  part = rest
end
-- </lease>

-- <slice>
-- needs: after allowed burst every flow id long out permit present size slices spared stamp writes
-- sets: writes
local dated, turn = stamp, after(burst, 0, permit, flow, every)
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
-- </slice>

-- <charge>
-- After fit: as many requests as the debt has room for. A debt takes 71 years at most, and the
-- numbers stay exact.
-- needs: n times permit flow every after whole part allowed
-- sets: allowed
local most = times + 1
allowed = 0
while most - allowed > 1 do
  local middle = math.floor((allowed + most) / 2)
  local debt = whole + n * middle
  if debt < 2 ^ 52 and after(debt, part, permit, flow, every) <= 2 ^ 51 then allowed = middle else most = middle end
end
-- </charge>

-- <ticket>
-- The instant up to which the refill is counted.
-- needs: out size since
-- sets:
out[size + 1] = since
out[size + 2] = 0
-- </ticket>

-- <giveback>
-- which is '1' if the bucket may have refilled what was held since the instant where, and above
-- that the epoch of a slice.
-- While permits are promised, nothing is given back: waiting callers know their instants, and
-- the next caller would get the same ones (operations.lua).
-- needs: back divide flow part permit present repair rule since slices stamp state sub theirs where which whole writes
-- sets: given part present repair since stamp state whole
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
local less, lessPart, given = returns, 0, 0
if which == '1' then
  local restored, rest = divide(math.max(since - where, 0), flow, permit)
  less = less - restored
  if rest > 0 then
    less = less - 1
    lessPart = permit - rest
  end
  if since < where + 0 or theirs then less = -1 end -- how much was refilled is not known
end
if less >= 0 and less + lessPart > 0 and whole + part > 0 and (writes == rule or not string.find(writes, '!', 1, true)) then
  given = math.min(lessPart > 0 and less + 1 or less, part > 0 and whole + 1 or whole)
  if theirs then theirs.full = math.max(theirs.less(returns), 0) end
  whole = whole - less
  part = part - lessPart
  if part < 0 then
    whole = whole - 1
    part = part + permit
  end
  if whole < 0 or whole + part == 0 then
    whole = 0
    part = 0
    since = present
  end
  if not repair then -- as present below
    stamp = tonumber(sub(state, 1, 16), 10)
    since = since - present + stamp
  end
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
  -- <store/>
end
-- </giveback>
]]
