-- Fixed window that opens with its first permit and closes when its key expires:
-- one counter, no clock. The counter includes the window's length, so that after a
-- change of the length the time at which the window opened is known.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] the counter of a window whose permits are all taken;
--          [3] window, milliseconds
-- State    "<permits used><window, 6 digits>": mantissa (5) and exponent (1) of
--          the window's milliseconds, 000064 for a minute
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
-- is of a window of this length.
-- needs: call key most window
-- sets: room left open repair taken
local room, left, open, repair
local taken = 0
local state = call('GET', key)
if state then
  if state.err then return state end
  local value = tonumber(state) or -1
  left = call('PTTL', key)
  room = most - value
  open = value >= 0 and room % 1000000 == 0 and left > 0 and left <= window
  if not open then
    local used
    if value < 0 then
      used = string.match(state, '^(%d+)@%d+$') -- written by datedwindow.lua
    else
      local code = value % 1000000
      local exponent = code % 10
      used = (value - code) / 1000000
      if room % 1000000 ~= 0 and left > 0 then -- another length: the window ends this length after it opened
        left = math.max(left + window - (code - exponent) / 10 * 10 ^ exponent, 0)
        repair = true -- the key has to expire when this window ends
      end
    end
    if not used or used % 1 ~= 0 then return {err = 'CORRUPT no state of a fixed window'} end
    if left == 0 or left == -2 then -- the window closes in this millisecond
      used = 0
      left = window
    elseif left < 0 or left > window then -- no TTL, or the clock stepped back
      left = window
      repair = true
    end
    room = most - most % 1000000 - used * 1000000
  end
else
  room = most - most % 1000000
  left = window
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
-- needs: n cost allowed room taken
-- sets: room taken
if allowed > 0 then
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
  -- needs: key most room left open taken
  -- sets:
  if open then
    redis.call('INCRBY', key, taken .. '000000')
  else
    redis.call('SET', key, string.format('%d', most - room),
      'PX', string.format('%d', left))
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
]]
