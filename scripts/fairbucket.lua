-- A token bucket that tenants share. Its level decides every call, as that of bucket.lua; the
-- shares say who may take from which part of it. What each tenant has had, per weight, is a mark on one
-- scale, and the line is the mark of the tenant that has had most:
--   - a call that leaves its tenant behind the line, or at it, needs room for its permits only;
--   - a call that moves the line leaves in the bucket what is kept for the others and for those who
--     come new;
--   - the first call of a tenant that is not counted may take what is kept for those who come new;
--   - all of these leave what tenants are promised; a call from that needs room for its permits only.
-- internal/testing/fairshares searches this rule.
--
-- KEYS     [1] the tenant's key; [2] that of the limit
-- ARGV     [1] permits; [2] capacity, units; [3] units a permit; [4] units that a microsecond
--          restores; [5] the rule, as it stands in the state; [6] the tenant's weight; [7] the TTL of
--          both keys without a debt, three epochs in milliseconds; [8] what the tenant is promised, parts; then what
--          callersclock.lua needs, if the caller's clock decides. Shares are counted in grains, of which
--          a permit is a million, and promises in parts, of which the rule has ten thousand
-- State    of the limit, its head: "<instant>/<units missing then>,<line>,<owed>;", each number 16
--          characters wide: no less than what is owed may be taken by those behind the line. Then its
--          tail: "<began>,<weights>,<most>,<counts>,<gap>,<shift>" and the rule that wrote it, as in
--          bucket.lua. The tail: when the epoch began; the weights of those counted, in this epoch or in
--          the one before it; the largest call of the epoch, per weight; of those weights the ones of this
--          epoch; how long the one before it was, 0 for none; where the line was when the epoch began,
--          on the scale of the one before; then, if anything is promised, the parts of those counted; of
--          these the ones of this epoch; no less than what they may take of it, parts times microseconds.
--          A tenant's: "<mark, 17 wide>,<weight>,<epoch>": the one in which it was counted last, by its
--          beginning; then, if it is promised something, the parts, and when all that they come to is
--          there. While only the head and the mark change, these are written in place (SETRANGE),
--          and the TTLs stay: they were set in the epoch, which lasts for a third of them
-- Reply    the words of a run, without the zeros at the end
-- Words    requests allowed; units missing before the run; how far the tenant was behind the line,
--          grains per weight; the grains that are kept for the others; how much more is kept after a call
--          that moved the line; the lag of the caller's clock, microseconds; how far a tenant can be
--          behind the line; for a tenant that comes new, 1 and what it has to leave of the grains kept;
--          of promises: what may be taken of all, as in the state; the parts of all; what the tenant may
--          take of its own, microseconds, and 1 if that is not below 0, or 0 if it has none; how many requests
--          were allowed without it
local key, limit, n, times = KEYS[1], KEYS[2], ARGV[1] + 0, 1
local call, entry = redis.pcall, nil

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

-- <config>
-- needs:
-- sets: capacity permit flow rule weight life promise
local capacity, permit, flow, rule = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5]
local weight, life, promise = ARGV[6] + 0, ARGV[7], ARGV[8]
-- </config>

-- <read>
-- The blocks after it use:
--   present  the instant that decides: now, or the state's if a caller's clock is ahead
--   missing  units missing at present
--   lag      how far now is behind present
--   repair   the clock stepped back: the state's instant becomes now
--   writes   the rule as the store writes it
--   margin   what the TTLs are longer by, milliseconds
--   counted  the tenant's weight as it is counted, 0 if it is not
--   current  it is counted in this epoch
--   had      its mark
--   own      what stands behind the mark in its key, nil: that is written anew
--   tail     that of the limit's state, nil: that is written anew, from counts and so on
--   promised, here, pledged  what the limit's state says of promises, and parts, full  the tenant's
-- needs: call capacity entry flow key limit mark now permit rule spare
-- sets: began by counted counts current full gap parts had here lag line margin missing most owed own pledged present promised repair shift state stored tail took weights writes
local present, missing, lag, repair, writes, margin = now, 0, 0, false, rule, spare
local began, weights, most, counts, gap, shift, line, owed, tail = nil, 0, 0, 0, 0, 0, 0, 0, nil
local counted, current, had, stored, took = 0, false, 0, 0, false
local promised, here, pledged, parts, full = 0, 0, 0, 0, 0
local state, at, by = entry, 0, nil
if entry then -- of a request before, which has not been written yet
  at = entry.at
  missing = entry.missing
  line = entry.line
  owed = entry.owed
  tail = entry.tail
  began = entry.began
  weights = entry.weights
  most = entry.most
  counts = entry.counts
  gap = entry.gap
  shift = entry.shift
  by = entry.by
  promised = entry.promised
  here = entry.here
  pledged = entry.pledged
else
  state = call('GET', limit)
  if state then
    if state.err then return state end
    at, missing, line, owed, tail, began, weights, most, by =
      string.match(state, '^ *(%d+)/ *(%d+), *(%d+), *(%d+);((%d+),(%d+),(%d+),%d+,%d+,%d+)(.*)$')
    if not by then return {err = 'CORRUPT no state of a fair token bucket'} end
    counts = nil -- and gap and shift: they are read from the tail when they are needed
    at = at + 0
    missing = missing + 0
    line = line + 0
    owed = owed + 0
    weights = weights + 0
    most = most + 0
    if at + missing + line + owed + weights + most >= 2 ^ 53 then
      return {err = 'CORRUPT no state of a fair token bucket'}
    end
  end
end
if state then
  local kind = mark
  stored = missing
  if not entry and by ~= rule and string.sub(by, 1, 1) == ',' then
    promised, here, pledged, by = string.match(by, '^,(%d+),(%d+),(%d+)(/.*)$')
    if not by then return {err = 'CORRUPT no state of a fair token bucket'} end
    promised = promised + 0
    here = here + 0
    pledged = pledged + 0
    if promised + here + pledged >= 2 ^ 53 then return {err = 'CORRUPT no state of a fair token bucket'} end
  end
  if promised > 0 then
    pledged = math.min(pledged + math.max(now - at, 0) * promised, math.floor(capacity / flow / 4) * promised)
  end
  if by ~= rule then -- until a call is allowed it goes on by the faster of that rule and this one
    local unit, speed, clock = string.match(by, '^/([1-9]%d*)/([1-9]%d*)(@?%d*)$')
    if not unit or #unit > 15 or #speed > 15 then return {err = 'CORRUPT no state of a fair token bucket'} end
    kind = mark .. clock
    if mark == '' and clock ~= '' then -- callers whose clocks are behind use the limit too
      writes = rule .. clock
      margin = math.min(tonumber(string.sub(clock, 2)) or 1000, 86400000)
    end
    if flow * unit < speed * permit then missing = math.max(missing - math.max(now - at, 0) * speed, 0) end
    local part = missing % unit
    missing = (missing - part) / unit * permit
    if part > 0 then missing = missing + math.ceil(part / unit * permit) end
    missing = math.min(missing, 2 ^ 52)
    if flow * unit < speed * permit and at < now then at = now end
  end
  if at > now then
    if kind == '' then
      repair = true
    else
      lag = at - now
      present = at
    end
  else
    missing = missing - (now - at) * flow
    if missing < 0 then missing = 0 end
  end
end
local own = call('GET', key)
if own then
  if own.err then return own end
  local mine, rest, of, since = string.match(own, '^ *(-?%d+)(,([1-9]%d*),(%d+))$')
  if not of then
    mine, of, since, parts, full = string.match(own, '^ *(-?%d+),([1-9]%d*),(%d+),(%d+),(%d+)$')
    if not of then return {err = 'CORRUPT no state of a tenant'} end
    parts = parts + 0
    full = full + 0
  end
  of = of + 0
  mine = mine + 0
  if of + mine + parts + full >= 2 ^ 53 or of - mine >= 2 ^ 53 then return {err = 'CORRUPT no state of a tenant'} end
  own = nil
  current = since == began
  if current then
    own = rest
    counted = of
    had = mine
  elseif state then
    if not counts then
      counts, gap, shift = string.match(tail, '(%d+),(%d+),(%d+)$')
      gap = gap + 0
    end
    if gap > 0 and since + 0 == began - gap then
      counted = of
      had = mine - shift
    end
  end
  if counted == 0 then parts = 0 end
end
-- </read>

-- <fit>
-- needs: capacity counted flow full parts had line missing most n owed permit pledged present promise promised times weight weights
-- sets: allowed before behind charged cost fresh kept lasts later pledges reach ticks welcome yields
local grains, others, burst = n * 1000000, weights - counted, capacity / permit
local cost = grains
if weight > 1 then cost = (grains + -grains % weight) / weight end
if weight < counted then others = weights - weight end
local share, reach, behind, fresh, welcome = burst * 375000 / (others + weight), 2 * most, 0, -1, false
share = share - share % 1
if share > reach then reach = share end
if counted > 0 then
  behind = line - had
  if behind > reach then behind = reach end
  if weight > counted and behind > 0 then behind = math.floor(behind * counted / weight) end
end
local kept, before, charged = share * others, missing, false
local later = kept
if counted == 0 and others > 0 then
  fresh = math.min(owed, kept)
  welcome = cost <= reach
end
local room, allowed = capacity - missing, 0
local part = room % permit
local level = (room - part) / permit * 1000000
if part > 0 then level = level + math.floor(part * 1000000 / permit) end
if promised > 0 and room > 0 then -- rounded once: it never falls while nobody takes
  local free = room * 10000 - pledged * flow
  part = free % permit
  level = (free - part) / permit * 100 + math.floor(part * 100 / permit)
end
if cost <= behind then
  allowed = (behind - behind % cost) / cost
  if allowed * grains > level then allowed = math.max((level - level % grains) / grains, 0) end
  if allowed > times then allowed = times end
elseif welcome and level - grains >= fresh then
  allowed = 1
end
if allowed < times and (allowed + 1) * cost > behind and (allowed == 1 or not welcome) then
  local free = level - allowed * grains - kept - (burst + -burst % 8) * 125000
  if free >= grains then
    allowed = math.min(times, allowed + (free - free % grains) / grains)
  end
end
if allowed == 0 and missing == 0 then allowed = 1 end
-- From what the tenant is promised: what it may take, and for a request, microseconds; and so many requests.
local pledges, lasts, ticks, yields = pledged, 0, 0, 0
if parts > 0 and parts == promise + 0 then
  lasts = math.floor(capacity / flow / 4) - math.max(full - present, 0)
  ticks = math.ceil(n * permit * 10000 / (flow * parts))
  yields = math.min(times - allowed, math.floor(lasts / ticks), math.floor(room / (n * permit)) - allowed)
  if yields < 0 then yields = 0 end
  allowed = allowed + yields
end
-- </fit>

-- <take>
-- An epoch ends only with a call that moves the line: that leaves as much as is kept, and so as
-- much as those can take for whom more is kept when others count no longer.
-- needs: allowed began behind by capacity charged cost counted counts current flow fresh full gap had here kept lasts later line margin missing most n now owed own parts permit pledged present promise promised reach repair shift tail ticks took weight weights welcome writes yields
-- sets: began counted counts current full gap parts had here lasts later line missing most owed own pledged promised repair shift tail took weights
if allowed > 0 then
  missing = missing + allowed * n * permit
  took = true
  local age = present - (began or present)
  local over = age < 0 or age >= 1000000 and age * flow >= capacity
  if over or repair or by ~= writes or not current or counted ~= weight or cost > most or missing > capacity
    or margin > 0 or promised > 0 or promise ~= '0' or now % 16 == 0 then
    -- <epochs>
    -- All of both keys is written anew.
    -- needs: counts gap own shift tail
    -- sets: counts gap own shift tail
    if not counts then counts, gap, shift = string.match(tail, '(%d+),(%d+),(%d+)$') end
    counts = counts + 0
    gap = gap + 0
    shift = shift + 0
    tail = nil
    own = nil
    -- </epochs>
    began = began or string.format('%d', present)
    local was, gets = counted, promise + 0
    if current then here = here - parts end
    if promised - parts + gets > 10000 then gets = 0 end
    if gets ~= parts then -- it begins with nothing
      full = present + math.floor(capacity / flow / 4)
      lasts = 0
    end
    promised = promised - parts + gets
    here = here + gets
    parts = gets
    counted = weight
    if was == 0 then
      counts = counts + weight
      weights = weights + weight
    elseif current then -- within an epoch no weight is lowered
      counted = math.max(weight, was)
      counts = counts + counted - was
      weights = weights + counted - was
    else
      weights = weights + weight - math.min(weight, was, weights - counts)
      counts = counts + weight
    end
    current = true
    repair = false
  end
  had = line - behind
  if fresh >= 0 then owed = fresh end
  if owed > kept then owed = kept end
  local moves = allowed - yields
  if charged then
    moves = 0
    had = had + allowed * cost
  elseif welcome then
    moves = moves - 1
  elseif fresh >= 0 then
    had = had - reach
  elseif cost <= behind then
    local free = (behind - behind % cost) / cost
    if free > moves then free = moves end
    moves = moves - free
    had = had + free * cost
    owed = owed - free * cost * weight
    if owed < 0 then owed = 0 end
  end
  if moves > 0 then
    had = had + moves * cost
    if had > line then line = had end
    if cost > most then most = cost end
    owed = kept
    if over then
      gap = age
      shift = line
      weights = counts
      counts = counted
      promised = here
      here = parts
      if age < 0 or age >= 2000000 and age * flow >= 2 * capacity then
        gap = 0
        weights = counted
        promised = parts
      end
      began = string.format('%d', present)
      most = math.max(math.floor(most / 2), cost)
      had = had - line
      line = 0
      local besides = weights - math.min(weight, counted)
      later = math.floor(capacity / permit * 375000 / (besides + weight)) * besides
    end
  end
  if yields > 0 then -- they count, and move no line: a tenant is not ahead of it by more than it can be behind
    had = math.min(had + yields * cost, math.max(had, line + math.max(reach, 2 * most)))
    full = math.max(full, present) + yields * ticks
    pledged = pledged - yields * math.floor(n * permit * 10000 / flow)
  end
  if promised > 0 or pledged > 0 then
    pledged = math.max(math.min(pledged, math.floor(capacity / flow / 4) * promised), 0)
  end
end
-- </take>

if took or repair then
  -- <lives>
  -- The TTL of both keys, longer by the time of a debt, and odd, see bucket.lua.
  -- needs: capacity flow life margin missing
  -- sets: lives
  local lives = life
  if margin > 0 then lives = life + margin + margin % 2 end
  if missing > capacity then
    local debt = (missing - capacity) / flow / 1000
    lives = lives + debt + -debt % 2
  end
  -- </lives>
  if took and own then
    redis.call('SETRANGE', key, '0', string.format('%17d', had))
  elseif took then
    local promises = parts > 0 and string.format(',%d,%d', parts, full) or ''
    redis.call('SET', key, string.format('%17d,%d,%s%s', had, counted, began, promises), 'PX', lives)
  end
  if took and tail then
    redis.call('SETRANGE', limit, '0', string.format('%16d/%16d,%16d,%16d', present, missing, line, owed))
  elseif took then
    local promises = promised > 0 and string.format(',%d,%d,%d', promised, here, pledged) or ''
    redis.call('SET', limit, string.format('%16d/%16d,%16d,%16d;%s,%d,%d,%d,%d,%d%s%s', present, missing, line, owed,
      began, weights, most, counts, gap, shift, promises, writes), 'PX', lives)
  else -- nothing but the instant changes
    redis.call('SET', limit, string.format('%16d/%16d', present, stored) .. string.sub(state, 34), 'PX', lives)
  end
elseif now % 16 == 0 then -- see expire
  local debt = math.max(missing - capacity, 0) / flow / 1000
  local lives = life + margin + margin % 2 + debt + -debt % 2
  if call('PTTL', limit) == -1 then redis.call('PEXPIRE', limit, lives) end
  if call('PTTL', key) == -1 then redis.call('PEXPIRE', key, lives) end
end

-- <answer>
-- needs: allowed before behind fresh parts kept lag lasts later pledges promise promised reach yields
-- sets:
if promised > 0 then
  local held = 0
  if parts > 0 and parts == promise + 0 then held = lasts < 0 and lasts or lasts + 1 end
  return {allowed, before, behind, kept, later - kept, lag, reach, fresh + 1, pledges, promised, held,
    allowed - yields}
end
if allowed > 0 and lag == 0 and later == kept then return {allowed, before, behind, kept} end
return {allowed, before, behind, kept, later - kept, lag, reach, fresh + 1}
-- </answer>

--[[ In place of the answer when a run of requests is decided:
-- <words>
-- needs: allowed before behind fresh parts kept lag lasts later out pledges promise promised reach size yields
-- sets: size
out[size + 1] = allowed
out[size + 2] = before
out[size + 3] = behind
out[size + 4] = kept
out[size + 5] = later - kept
out[size + 6] = lag
out[size + 7] = reach
out[size + 8] = fresh + 1
out[size + 9] = pledges
out[size + 10] = promised
out[size + 11] = 0
if parts > 0 and parts == promise + 0 then out[size + 11] = lasts < 0 and lasts or lasts + 1 end
out[size + 12] = allowed - yields
size = size + 12
-- </words>

For other operations, and other limits:
-- <limits>
-- needs:
-- sets: limits states
local limits, tenants, states = {}, {}, {}
for i = 1, #KEYS / 2 do
  local tenant = KEYS[i]
  tenants[i] = tenant
  limits[tenant] = KEYS[#KEYS / 2 + i]
end
local KEYS = tenants
-- </limits>

-- <load>
-- needs: key limits states
-- sets: entry limit
local limit = limits[key]
local entry = states[limit]
-- <read/>
-- </load>

-- <store>
-- The tenant's key; the limit's is written once, at the end (flush).
-- needs: began by counted counts entry full gap parts had here key limit line lives missing most owed own pledged present promised repair shift states stored tail took weights writes
-- sets: entry
-- <lives/>
if took and own then
  redis.call('SETRANGE', key, '0', string.format('%17d', had))
elseif took then
  local promises = parts > 0 and string.format(',%d,%d', parts, full) or ''
  redis.call('SET', key, string.format('%17d,%d,%s%s', had, counted, began, promises), 'PX', lives)
end
entry = entry or {}
states[limit] = entry
entry.at = present
entry.missing = missing
entry.by = writes
if repair and not took then
  entry.missing = stored
  entry.by = by
end
entry.line = line
entry.owed = owed
entry.tail = tail
entry.began = began
entry.weights = weights
entry.most = most
entry.counts = counts
entry.gap = gap
entry.shift = shift
entry.promised = promised
entry.here = here
entry.pledged = pledged
entry.again = entry.again or repair
entry.lives = lives
-- </store>

-- <flush>
-- Writes each limit once.
-- needs: states
-- sets:
for name, s in pairs(states) do
  local head = string.format('%16d/%16d,%16d,%16d', s.at, s.missing, s.line, s.owed)
  if s.tail and not s.again then
    redis.call('SETRANGE', name, '0', head)
  else
    local tail = s.tail or string.format('%s,%d,%d,%d,%d,%d', s.began, s.weights, s.most, s.counts, s.gap, s.shift)
    if s.promised > 0 then tail = tail .. string.format(',%d,%d,%d', s.promised, s.here, s.pledged) end
    redis.call('SET', name, head .. ';' .. tail .. s.by, 'PX', s.lives)
  end
end
-- </flush>

-- <expire>
-- A key that has lost its TTL gets one, see bucket.lua.
-- needs: call key limit lives now
-- sets:
if now % 16 == 0 then
  -- <lives/>
  if call('PTTL', limit) == -1 then redis.call('PEXPIRE', limit, lives) end
  if call('PTTL', key) == -1 then redis.call('PEXPIRE', key, lives) end
end
-- </expire>

-- <charge>
-- After fit: as many requests as the debt has room for. A charge counts against the share, and moves
-- no line: those who are behind it have not had more.
-- needs: allowed behind charged cost flow line missing n permit times yields
-- sets: allowed charged yields
local room = math.min(2 ^ 52 - 1, 2 ^ 51 * flow, 1e9 * permit) - missing
allowed = math.max(math.min(times, math.floor(room / (n * permit)), math.floor((2 ^ 50 - line + behind) / cost)), 0)
charged = true
yields = 0
-- </charge>

-- <ticket>
-- needs: out size present
-- sets:
out[size + 1] = present
out[size + 2] = 0
-- </ticket>

-- <giveback>
-- To the limit and to the tenant's share. While the state is another rule's, nothing comes back.
-- needs: back by counted counts current had here missing owed parts permit repair rule state took weight weights
-- sets: counts given had here missing owed repair took weights
local given = 0
if state and missing > 0 and by == rule then
  given = math.min(back, math.ceil(missing / permit))
  missing = math.max(missing - back * permit, 0)
  repair = false
  -- <epochs/>
  if counted > 0 then
    took = true
    had = had - math.floor(back * 1000000 / weight)
    owed = owed + back * 1000000
    if not current then
      weights = weights + counted - math.min(counted, weights - counts)
      counts = counts + counted
      here = here + parts
    end
  end
  -- <store/>
end
-- </giveback>
]]
