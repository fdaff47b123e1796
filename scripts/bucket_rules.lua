-- What the two buckets have in common for rare cases: reading a state that another rule wrote, and
-- giving back. The lines of bucket.lua and steppedbucket.lua that name these blocks stand for them;
-- scripts/assembled has the complete texts.

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
