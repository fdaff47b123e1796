-- Fixed window that opens with its first permit and closes as its key expires:
-- one counter, no clock. The counter carries the window's length, so that a
-- changed one finds out when the window opened: the last six digits are
-- mantissa (5) and exponent (1) of its milliseconds, 000064 for a minute.
--
-- ARGV   [2] the counter of a window that is used up; [3] window, milliseconds;
--        [4] present when the answer would not fit into one integer
-- State  "<permits used><window, 6 digits>"
-- Answer permits used before the call × (window + 1) + milliseconds left of the
--        window, negative when denied; with [4] the words
-- Words  granted, permits used before the run, milliseconds left of the window

--- config
local most, window, wide = ARGV[2] + 0, ARGV[3] + 0, ARGV[4]

--- load
local used, left, open, stale = 0, window, false, false
local state = call('GET', key)
if state then
  if state.err then return state end
  local value = tonumber(state)
  left = call('PTTL', key)
  if not value then
    value = string.match(state, '^%d+/(%d+)$') -- as datedwindow.lua leaves it
    if not value then return {err = 'CORRUPT no state of a fixed window'} end
    used = value * 1000000
  elseif value < 0 or value % 1 ~= 0 then
    return {err = 'CORRUPT no state of a fixed window'}
  else
    used = value - value % 1000000
    open = (most - value) % 1000000 == 0
    if not open and left > 0 then -- another length, from the same opening
      local code = value % 1000000
      local exponent = code % 10
      left = left + window - (code - exponent) / 10 * 10 ^ exponent
      if left < 0 then left = 0 end
    end
  end
  if left == 0 or left == -2 then -- it closes in this millisecond
    used = 0
    left = window
    open = false
  elseif left < 0 or left > window then -- no TTL, or the clock stepped back
    left = window
    open = false
    stale = true
  end
end
local loaded = used

--- take
local cost, granted, before = n * 1000000, 0, used
local room = most - used
if cost <= room then
  granted = (room - room % cost) / cost
  if granted > times then granted = times end
  used = used + granted * cost
end

--- store
if open then
  redis.call('INCRBY', key, (used - loaded) / 1000000 .. '000000')
else
  redis.call('SET', key, string.format('%.0f', used + most % 1000000),
    'PX', string.format('%.0f', left))
end

--- answer
if wide then return {granted, before / 1000000, left} end
before = before / 1000000 * (window + 1) + left
if granted == 0 then return -before end
return before

--- emit
out[size + 1] = granted
out[size + 2] = before / 1000000
out[size + 3] = left
size = size + 3
