-- Fixed window that stores its start, for the caller's clock, or for windows that
-- start at given times.
--
-- There is one counter, so a key has one window at a time. It lasts for the shorter of two
-- windows: that of the calling rule, and the longest one of the rules that have taken permits
-- from it. The first call after that opens the next window, which never starts before the end
-- of the one before it: of an aligned rule it may be the rest of a window. Otherwise rules whose
-- windows end at other times, by clocks that differ, could open the same windows again and again.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] limit; [3] window, microseconds; [4] offset of the
--          windows from 1970, microseconds, or "first" for windows that open with
--          their first permit; last spare and the caller's clock, if that decides
--          (callersclock.lua)
-- State    "<permits used>/<start>/<longest window>", microseconds, and "@<spare>" if
--          the start is an instant of a caller's clock; then "~" and how long after the start
--          slices may be spent, if any were taken. The start is below 0 if the window began
--          before 1970
-- Reply    the words of a run
-- Words    requests allowed, permits left before the run, microseconds left of the
--          window
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

-- <config>
-- An aligned window that was not changed by other rules, slices or clocks has the same text behind its permits, and the
-- same TTL, for all keys of the rule: to read and write that is cheaper.
--   opens  when a window of this rule has begun
--   tail   that text
--   life   that TTL, once it is needed
-- needs: mark now spare
-- sets: life limit offset opens tail window
local limit, window, offset = ARGV[2] + 0, ARGV[3] + 0, ARGV[4]
local opens, tail, life = now, nil, nil
if offset ~= 'first' then
  opens = now - (now - offset) % window
  tail = string.format('/%d/%d', opens, window)
  if mark == '@' then tail = tail .. '@' .. spare end
end
-- </config>

-- <load>
-- The blocks after it use:
--   start, used  the window's start, and the permits taken from it
--   lasts        how long it is for this rule
--   longest      how long it is for the rule with the longest window that has taken from it
--   written      whose clock the start is of, as the state has it
--   margin       what the TTL is longer by, milliseconds
--   repair       the server's clock stepped back: the window starts again, with its count
--   sliced       how long after the start slices may be spent: until then no rule ends the window
--   leased       what the state says of that
--   plain        the state is tail behind its permits
-- needs: call key mark now offset opens spare tail window
-- sets: state start used lasts longest written margin repair sliced leased plain
local start, used, lasts, longest, repair, sliced, leased = opens, 0, window, window, false, 0, ''
local written, margin, plain = mark, spare, tail ~= nil
if mark == '@' then written = '@' .. spare end
local state = call('GET', key)
if state and state.err then return state end
local taken = state and plain and string.sub(state, -#tail) == tail and string.match(state, '^%d+')
if taken and #taken + #tail == #state and #taken < 16 then
  used = taken + 0
elseif state then
  local count, from, theirs, by, out = string.match(state, '^(%d+)/(%-?%d+)/([1-9]%d*)(@?%d*)~?(%d*)$')
  if not count then
    local digits, exponent -- written by fixedwindow.lua: the TTL is its end
    count, digits, exponent, out = string.match(state, '^(%d+)(%d%d%d%d%d)(%d)~?(%d*)$')
    if not count then return {err = 'CORRUPT no state of a fixed window'} end
    by = ''
    theirs = tonumber(digits, 10) * 10 ^ exponent * 1000 -- 10, because miniredis takes a first 0 for octal
    local left = call('PTTL', key)
    if left == -1 then left = theirs / 1000 end
    from = math.min(now, now - now % 1000 + left * 1000 - theirs)
    if out ~= '' then out = math.max(now + math.min(left - out, 10001) * 1000 - from, 0) end -- a slice lasts 10 s at most
  end
  out = tonumber(out) or 0
  local age, ends = now - from, math.max(math.min(window, theirs), out)
  if age < ends then
    plain = false
    start = from + 0
    used = count + 0
    lasts = ends
    sliced = out
    longest = math.max(window, theirs, sliced)
    if offset ~= 'first' and theirs + 0 == window - (start - offset) % window then -- the rest of its window stays that
      longest = math.max(theirs, sliced)
    end
    if start + longest >= 2 ^ 53 or used >= 2 ^ 53 then return {err = 'CORRUPT no state of a fixed window'} end
    if by ~= '' then
      local longer = tonumber(string.sub(by, 2)) or 2 ^ 53
      if longer > 86400000 then return {err = 'CORRUPT no state of a fixed window'} end -- more than a day
      margin = math.max(spare, longer)
      written = '@' .. margin
    end
    -- The server's clock stepped back, but not just over the start of an aligned window:
    -- if that opened again, it could allow its limit twice.
    if age < 0 and mark == '' and by == '' and (offset == 'first' or start ~= opens + window) then
      start = opens
      repair = true
      if sliced > 0 then -- as far from now as they were from the start; a slice lasts 10 s at most
        sliced = math.min(sliced, 10001000) + now - start
        longest = math.max(longest, sliced)
      end
    end
    if start + sliced > now then leased = string.format('~%d', sliced) end
  elseif start < from + ends then
    plain = false
    longest = start + window - from - ends
    lasts = longest
    start = from + ends
  end
end
-- </load>

-- <fit>
-- needs: n times limit used
-- sets: allowed before
local allowed, before = times, math.max(limit - used, 0)
if n * allowed > before then
  allowed = (before - before % n) / n
end
-- </fit>

-- <take>
-- needs: n window allowed used lasts longest sliced
-- sets: used lasts
used = used + allowed * n
if allowed > 0 then lasts = math.max(math.min(window, longest), sliced) end
-- </take>

if allowed > 0 or repair then
  -- <store>
  -- needs: key now start used longest written margin leased life plain tail
  -- sets: life
  -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
  -- as 1e+8.
  local ttl = (start + longest - now) / 1000
  if margin > 0 then ttl = math.min(ttl, longest / 1000) end -- the margin is enough for a clock that is behind
  if plain and leased == '' and life then
    redis.call('SET', key, string.format('%d%s', used, tail), 'PX', life)
  else
    local keep = string.format('%d', ttl - ttl % 2 + 3 + margin)
    redis.call('SET', key, string.format('%d/%d/%d%s%s', used, start, longest, written, leased), 'PX', keep)
    if plain and leased == '' then life = keep end
  end
  -- </store>
else
  -- <expire>
  -- A key that has lost its TTL gets one.
  -- needs: key now state start longest margin
  -- sets:
  local ttl = (start + longest - now) / 1000
  if redis.call('PTTL', key) == -1 then redis.call('SET', key, state, 'PX', ttl - ttl % 2 + 3 + margin) end
  -- </expire>
end

-- <answer>
-- needs: now start lasts allowed before
-- sets:
return {allowed, before, start + lasts - now}
-- </answer>

--[[ In place of the answer when a run of requests is decided:
-- <words>
-- needs: out size now start lasts allowed before
-- sets: size
out[size + 1] = allowed
out[size + 2] = before
out[size + 3] = start + lasts - now
size = size + 3
-- </words>
-- <lease>
-- A slice gets so many of the requests (times), and of the last permits one even if nobody waits for it. It
-- lasts so long (long), but not beyond the end of the window.
-- needs: least limit long longest now sliced start times used window
-- sets: long times
local fits = math.max(limit - used, 0)
times = math.min(times, math.max(math.min(fits, math.max(least, 1)), math.floor(fits / 4)))
long = times > 0 and math.min(long, start + math.max(math.min(window, longest), sliced) - now) or 0
-- </lease>
-- <slice>
-- needs: leased long now out size sliced start
-- sets: leased
if long > 0 then leased = string.format('~%d', math.max(sliced, math.max(now - start, 0) + long)) end
out[size + 1] = start
out[size + 2] = 0
-- </slice>
-- <charge>
-- After fit: as many requests as the debt has room for.
-- needs: n times used allowed
-- sets: allowed
local room = 4e12 - used
allowed = times
if n * allowed > room then allowed = math.max((room - room % n) / n, 0) end
-- </charge>
-- <ticket>
-- The window's start.
-- needs: out size start
-- sets:
out[size + 1] = start
out[size + 2] = 0
-- </ticket>
-- <giveback>
-- By callers' clocks, a window that is unused again stays for as long as their skew: otherwise
-- a clock that is behind would begin the window before it again.
-- needs: key back start used longest written margin where window
-- sets: given used
local given = 0
-- fixedwindow.lua moves the start to a whole millisecond, and servers round TTLs in their own ways.
if where == '' or math.abs(start - where) < math.min(window, 2000) then given = math.min(back, used) end
if given > 0 and given == used then
  if written == '' then
    redis.call('UNLINK', key)
  else
    redis.call('SET', key, string.format('0/%d/%d%s', start, longest, written), 'PX', string.format('%d', margin + 3))
  end
elseif given > 0 then
  used = used - given
  -- <store/>
end
-- </giveback>
]]
