-- Looks at a key for one request for one permit: takes nothing and writes nothing.
-- KEYS and ARGV are those of the algorithm's script, whose blocks replace the marked
-- lines. The reply is the words of a run of one request, before it has taken anything.
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall
-- needs:
-- sets: most window
local most, window = ARGV[2] + 0, ARGV[3] + 0
local out, size = {}, 0
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
-- needs: n times room
-- sets: cost allowed before
local cost, allowed, before = n * 1000000, times, room
if cost * allowed > room then
  if room < 0 then before = 0 end -- the limit was lowered; permits taken stay taken
  allowed = (before - before % cost) / cost
end
-- needs: out size allowed before left
-- sets: size
out[size + 1] = allowed
out[size + 2] = before / 1000000
out[size + 3] = left
size = size + 3
return out
