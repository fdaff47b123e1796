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
-- is of a window of this length. The blocks after it use:
--   left   milliseconds left of the window
--   lasts  the same after a permit is taken under this rule
--   open   the key goes on to count, with the TTL that it has
--   taken  permits taken in this execution
-- needs: call key most window
-- sets: lasts left open repair room state taken
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
