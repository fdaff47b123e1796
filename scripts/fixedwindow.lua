-- Fixed window that opens with its first permit and closes when its key expires:
-- one counter, no clock. The counter includes the window's length, so that another rule
-- knows when the window opened.
--
-- There is one counter, so a key has one window at a time. It lasts for the shorter of two
-- windows: that of the calling rule, and the longest one of the rules that have taken permits
-- from it. The first call after that opens the next window.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] the counter of a window whose permits are all taken;
--          [3] window, milliseconds
-- State    "<permits used><window, 6 digits>": mantissa (5) and exponent (1) of the
--          milliseconds of the longest window that has taken permits, 000064 for a minute.
--          Then "~" and the milliseconds left of the window when the last slice ends, if
--          any are out
-- Reply    permits left before the call × (window + 1) + milliseconds left of the
--          window, negative when denied; the words of a run if that number could
--          be beyond 2^53
-- Words    requests allowed, permits left before the run, milliseconds left
local key, n, times = KEYS[1], ARGV[1], 1 -- n stays a string: arithmetic takes it
local call = redis.pcall

-- <config>
-- needs:
-- sets: most window
local most, window = ARGV[2] + 0, ARGV[3] + 0
-- </config>

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
-- </load>

-- <fit>
-- needs: n times room
-- sets: cost allowed before
local cost, allowed, before = n * 1000000, times, room
if cost * allowed > room then
  if room < 0 then before = 0 end -- the limit was lowered; permits taken stay taken
  allowed = (before - before % cost) / cost
end
-- </fit>

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
-- </take>

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
  -- </store>
end

-- <answer>
-- needs: allowed before left window
-- sets:
local packed = before / 1000000 * (window + 1) + left
if allowed == 0 then return -packed end
return packed
-- </answer>

--[[ In place of the answer when a run of requests is decided:
-- <words>
-- needs: out size allowed before left
-- sets: size
out[size + 1] = allowed
out[size + 2] = before / 1000000
out[size + 3] = left
size = size + 3
-- </words>
-- <lease>
-- A slice gets so many of the requests (times), and of the last permits one even if nobody waits for it. It
-- lasts so long (long), but not beyond the end of the window.
-- needs: lasts least long room times
-- sets: long times
local fits = math.max(math.floor(room / 1000000), 0)
times = math.min(times, math.max(math.min(fits, math.max(least, 1)), math.floor(fits / 4)))
long = math.min(long, (lasts - 1) * 1000)
if times < 1 or long < 1 then
  times = math.min(times, least)
  long = 0
end
-- </lease>
-- <slice>
-- Its place: seal fills it in. A millisecond more, because TTLs are whole ones.
-- needs: long open out size sliced
-- sets: open sliced
if long > 0 then
  sliced = math.max(sliced, math.ceil(long / 1000) + 1)
  open = false
end
out[size + 1] = 0
out[size + 2] = 0
-- </slice>
-- <charge>
-- After fit: as many requests as the debt has room for.
-- needs: times most room cost allowed before
-- sets: allowed before
local debt = 4e15 - (most - room)
allowed = times
before = math.max(room, 0)
if cost * allowed > debt then allowed = math.max((debt - debt % cost) / cost, 0) end
-- </charge>
-- <ticket>
-- Its place: seal fills it in.
-- needs: out size
-- sets:
out[size + 1] = 0
out[size + 2] = 0
-- </ticket>
-- <seal>
-- After the store: the first of the milliseconds of which one is the end of the window, and
-- how many follow. The clock goes on while a script runs, on a busy machine by several.
-- needs: key out tickets
-- sets:
if tickets[1] then
  local time = redis.call('TIME')
  local ends = redis.call('PTTL', key)
  local after = redis.call('TIME')
  local first = time[1] * 1000 + math.floor(time[2] / 1000)
  for i = 1, #tickets do
    out[tickets[i] + 1] = first + ends
    out[tickets[i] + 2] = after[1] * 1000 + math.floor(after[2] / 1000) - first
  end
end
-- </seal>
-- <giveback>
-- The window is the ticket's if it may end when that does, and no later window may: one
-- that opens when it is over ends a window's length after it, or later.
-- needs: back call key lasts most open room runs state taken where which window
-- sets: given room taken
local given = 0
local dated = string.match(state or '', '^%d+/%d+/(%d+)~?%d*$') -- a window whose state has its start
dated = dated and dated + 0 == window * 1000
if where == '' and state then -- a credit, to whichever window is open
  given = math.min(back, math.floor((most - room) / 1000000))
  taken = -given
  room = room + given * 1000000
  if most - room < 1000000 then
    redis.call('UNLINK', key)
  elseif given > 0 then
    -- <store/>
  end
elseif open or runs or dated then
  local time = redis.call('TIME')
  local ends = dated and lasts or call('PTTL', key)
  local after = redis.call('TIME')
  local earliest = ends + time[1] * 1000 + math.floor(time[2] / 1000)
  local latest = ends + after[1] * 1000 + math.floor(after[2] / 1000)
  -- Servers round the clock and TTLs to milliseconds in their own ways.
  if latest >= where - 1 and earliest <= where + which + 1 and latest < where + window then
    local used = math.floor((most - room) / 1000000)
    given = math.min(back, used)
    if given == used then
      redis.call('UNLINK', key)
    elseif given > 0 then
      taken = -given
      room = room + given * 1000000
      -- <store/>
    end
  end
end
-- </giveback>
]]
