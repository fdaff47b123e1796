-- Fixed window that opens with its first permit and closes as its key expires:
-- one counter, no clock. The counter carries the window's length, so that a
-- changed one finds out when the window opened: the last six digits are
-- mantissa (5) and exponent (1) of its milliseconds, 000064 for a minute.
--
-- ARGV   [2] the counter of a window that is used up; [3] window, milliseconds
-- State  "<permits used><window, 6 digits>"
-- Answer permits left before the call × (window + 1) + milliseconds left of the
--        window, negative when denied; widewindow.lua has another, for where
--        that may be beyond 2^53
-- Words  granted, permits left before the run, milliseconds left of the window

--- config
local most, window = ARGV[2] + 0, ARGV[3] + 0

--- load
local room, left, open, stale
local taken = 0
local state = call('GET', key)
if state then
  if state.err then return state end
  local value = tonumber(state) or -1
  left = call('PTTL', key)
  room = most - value
  open = value >= 0 and room % 1000000 == 0 and left > 0 and left <= window
  if not open then
--@ reopen
  end
else
  room = most - most % 1000000
  left = window
end

--- reopen
local used
if value < 0 then
  used = string.match(state, '^(%d+)@%d+$') -- as datedwindow.lua leaves it
else
  local code = value % 1000000
  local exponent = code % 10
  used = (value - code) / 1000000
  if room % 1000000 ~= 0 and left > 0 then -- another length, from the same opening
    left = math.max(left + window - (code - exponent) / 10 * 10 ^ exponent, 0)
    stale = true -- to be kept as long as this rule needs it
  end
end
if not used or used % 1 ~= 0 then return {err = 'CORRUPT no state of a fixed window'} end
if left == 0 or left == -2 then -- it closes in this millisecond
  used = 0
  left = window
elseif left < 0 or left > window then -- no TTL, or the clock stepped back
  left = window
  stale = true
end
room = most - most % 1000000 - used * 1000000

--- take
local cost, granted, before = n * 1000000, times, room
if cost * granted > room then
  if room < 0 then before = 0 end -- the limit was lowered; what is used stays used
  granted = (before - before % cost) / cost
end
if granted > 0 then
  room = room - granted * cost
  if granted == 1 and taken == 0 then
    taken = n -- as it came: a number would have to be written out
  else
    taken = taken + granted * n
  end
end

--- store
if open then
  redis.call('INCRBY', key, taken .. '000000')
else
  redis.call('SET', key, string.format('%d', most - room),
    'PX', string.format('%d', left))
end

--- answer
local packed = before / 1000000 * (window + 1) + left
if granted == 0 then return -packed end
return packed

--- emit
out[size + 1] = granted
out[size + 2] = before / 1000000
out[size + 3] = left
size = size + 3
