-- Gives permits back that estimate.lua has taken. The blocks of an algorithm's script
-- replace the marked lines.
--
-- KEYS[1]  the key
-- ARGV     [1] "<permits>/<where>/<which>", the last two from the ticket; the rest is that
--          of the algorithm's script
-- Reply    the permits given back, rounded up
local key, n, times = KEYS[1], 1, 1
local call = redis.pcall
-- needs:
-- sets: most window
local most, window = ARGV[2] + 0, ARGV[3] + 0
local back, where, which = string.match(ARGV[1], '^(%d+)/(%d+)/(%d+)$')
back = back + 0
-- room is the difference of two counters. It is a multiple of 1,000,000 if the state
-- is of a window of this length. The blocks after it use:
--   left   milliseconds left of the window
--   lasts  the same after a permit is taken under this rule
--   open   the key goes on to count, with the TTL that it has
--   taken  permits taken in this execution
-- needs: call key most window
-- sets: room left lasts open repair taken
local room, left, lasts, open, repair
local taken = 0
local state = call('GET', key)
if state then
  if state.err then return state end
  local value = tonumber(state) or -1
  left = call('PTTL', key)
  lasts = left
  room = most - value
  -- INCRBY refuses a number of another form, such as 3e6: it has not so many digits.
  open = value < 10 ^ #state and value >= 10 ^ (#state - 1) and room % 1000000 == 0 and left > 0 and left <= window
  if not open then
    local theirs, slack, used = window, 1
    if value >= 0 then
      local code = value % 1000000
      if value < 2 ^ 53 and not string.find(state, '%D') then used = (value - code) / 1000000 end
      if room % 1000000 ~= 0 then
        local exponent = code % 10
        theirs = (code - exponent) / 10 * 10 ^ exponent
        if code >= 100000 then slack = 10 ^ exponent end -- of five digits, more may have been cut
      end
    else
      local longest, margin
      used, longest, margin = string.match(state, '^(%d+)/%d+/([1-9]%d*)@?(%d*)$') -- written by datedwindow.lua
      if used then
        theirs = longest / 1000
        slack = 3
        if left > 0 then left = math.max(left - 1 - (tonumber(margin) or 0), 0) end
      end
    end
    if not used or used % 1 ~= 0 then return {err = 'CORRUPT no state of a fixed window'} end
    lasts = left + window - theirs
    if left == -1 or left >= theirs + slack then -- no TTL, or the clock stepped back
      repair = true
      left = window
      lasts = window
    elseif left <= 0 or lasts <= 0 then -- that window is over
      used = 0
      left = window
      lasts = window
    elseif theirs > window then -- it goes on for that rule, which has taken permits
      left = lasts
      open = value >= 0
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
-- The window is the ticket's if it may end when that does, and no later window may: one
-- that opens when it is over ends a window's length after it, or later.
-- needs: back call key most open room taken where which window
-- sets: given
local given = 0
if open then
  local time = redis.call('TIME')
  local ends = call('PTTL', key)
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
        -- needs: key most room lasts open taken
        -- sets:
        if open then
          redis.call('INCRBY', key, taken .. '000000')
        else
          redis.call('SET', key, string.format('%d', most - room),
            'PX', string.format('%d', lasts))
        end
    end
  end
end
return {given}
