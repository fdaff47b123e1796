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
-- <arithmetic/>
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
    -- <inherit/>
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

-- <cancel/>
-- <waiting/>

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
-- <mark/>
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
-- <spare/>
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
  -- <lower/>
  -- <store/>
end
-- </giveback>
]]
