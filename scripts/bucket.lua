-- Token bucket and leaky bucket that refill or drain evenly, and whose units fit into one
-- number. They decide alike: "missing" is how far a token bucket is from full, or the
-- level of a leaky bucket. This is GCRA (ITU-T I.371) with a level and its time as state.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] capacity, units; [3] units a permit; [4] units that a
--          microsecond restores; [5] the rule, as it stands in the state; then what
--          callersclock.lua needs, if the caller's clock decides. The caller chooses the
--          unit so that all numbers are whole.
-- State    "<instant, 16 digits>/<units missing then>", and the rule that wrote it:
--          "/<units a permit>/<units that a microsecond restores>", and "@" if a
--          caller's clock wrote it, then spare if not 1000; then "!" and for how many
--          microseconds after the instant permits are promised, if they are; then ";" and
--          cancels that wait (cancel). In front of "!", "~" and what mark says of slices, if
--          any are out. A state with "!" or "~", and one of steppedbucket.lua, is another rule's.
-- Reply    units missing before the call, negative when denied; -2^53 if another rule's
--          state denies: then the caller asks for the words
-- Words    requests allowed; units missing before the run; the lag of the caller's
--          clock behind the state, microseconds; 0. If another rule wrote the state and
--          nothing was taken, the last two are the times until the first denied request
--          fits and until the bucket is full
local key, n, times = KEYS[1], ARGV[1], 1 -- n stays a string: arithmetic takes it
local call = redis.pcall

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

-- <config>
-- needs:
-- sets: capacity permit flow rule sub
local capacity, permit, flow, rule = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5]
local sub = string.sub
-- </config>

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
    -- <arithmetic/>
    -- <inherit/>
    missing = math.min(whole * permit + part, 2 ^ 53) -- with a larger burst it may be more
    if same and missing < 2 ^ 52 then theirs = nil end -- the answer says more by theirs
  end
end
-- </load>

-- <fit>
-- needs: n times capacity permit missing
-- sets: allowed before cost room
local cost, allowed, before = n * permit, times, missing
local room = capacity - missing
if cost * allowed > room then -- room is below 0 if a larger burst was used
  allowed = math.max((room - room % cost) / cost, 0)
end
-- </fit>

-- <take>
-- needs: cost allowed missing repair theirs
-- sets: missing repair theirs
if allowed > 0 then -- the state becomes one of this rule
  missing = missing + allowed * cost
  repair = false
  theirs = nil
end
-- </take>

-- <wait>
-- needs: n capacity permit lag theirs
-- sets: late filled
local late, filled = lag, 0
if theirs then -- nothing was taken
  late = lag + theirs.wait(n)
  filled = lag + theirs.wait(capacity / permit)
end
-- </wait>

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
  -- </store>
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
  -- </expire>
end

-- <answer>
-- needs: allowed before filled
-- sets:
if allowed > 0 then return before end
return filled > 0 and -2 ^ 53 or -before
-- </answer>

--[[ In place of the answer when a run of requests is decided:
-- <words>
-- needs: out size allowed before late filled
-- sets: size
out[size + 1] = allowed
out[size + 2] = before
out[size + 3] = late
out[size + 4] = filled
size = size + 4
-- </words>

-- <due>
-- When the permits fit, microseconds from now, and the instant that the state gets.
-- needs: present missing lag capacity flow cost
-- sets: due stamp
local due, stamp = 0, present
local over = missing + cost - capacity
if over > 0 then due = lag + (over + -over % flow) / flow end
-- </due>

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
-- </receipt>

-- <cancel/>
-- <waiting/>

-- <remains>
-- Of a state that is restored, as load has read it, in milliseconds.
-- needs: flow margin missing theirs
-- sets: remains
local remains = missing / flow / 1000 + margin
if theirs then remains = theirs.full / 1000 + margin end
-- </remains>

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
-- </lease>

-- <slice>
-- needs: allowed capacity flow id long out permit present size slices spared writes
-- sets: writes
local dated, turn, burst = present, capacity / flow, capacity / permit
spared = math.floor(spared)
-- <mark/>
out[size + 1] = 0
out[size + 2] = epoch + 0
-- </slice>

-- <charge>
-- After fit: as many requests as the debt has room for. A debt takes 71 years at most, and the
-- numbers stay exact.
-- needs: allowed cost flow missing room times
-- sets: allowed
room = math.min(2 ^ 52 - 1, 2 ^ 51 * flow) - missing
allowed = times
if cost * allowed > room then allowed = math.max((room - room % cost) / cost, 0) end
-- </charge>

-- <ticket>
-- The instant up to which the refill is counted.
-- needs: out size present
-- sets:
out[size + 1] = present
out[size + 2] = 0
-- </ticket>

-- <giveback>
-- which is '1' if the bucket may have refilled what was held since the instant where, and above
-- that the epoch of a slice.
-- While permits are promised, nothing is given back: waiting callers know their instants, and
-- the next caller would get the same ones (operations.lua).
-- needs: back flow key margin missing permit present repair rule slices state sub theirs where which writes
-- sets: given missing present repair state
-- <spare/>
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
    -- <lower/>
    -- <store/>
  end
end
-- </giveback>
]]
