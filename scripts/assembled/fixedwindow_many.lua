-- Requests for several keys, decided as if made one after the other. Each key is
-- loaded once and stored once. The blocks of an algorithm's script replace the marked
-- lines; a block whose name has a question mark is optional.
--
-- KEYS   the keys, each once
-- ARGV   [1] unused, then the algorithm's, then for each key its requests: "1" for
--        one request for one permit, otherwise runs "<permits>x<times>" joined by
--        commas; last spare and the caller's clock, if that decides (callersclock.lua)
-- Reply  for each key and run the algorithm's words. The first word is the number of
--        requests allowed; these are the first ones of the run. For a key that failed
--        there is one -1 instead, and the key was left as it was (unless Redis refused
--        a command that comes after the first command that writes).
local call = redis.pcall
-- needs:
-- sets: most window
local most, window = ARGV[2] + 0, ARGV[3] + 0
local out, size = {}, 0

local function decide(key, requests)
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
  local change, begin = repair, 1
  repeat
    local n, times = 1, 1
    if requests ~= '1' then
      local _, stop, permits, calls = string.find(requests, '^(%d+)x(%d+)', begin)
      n = permits + 0
      times = calls + 0
      begin = stop + 2
    end
    -- needs: n times room
    -- sets: cost allowed before
    local cost, allowed, before = n * 1000000, times, room
    if cost * allowed > room then
      if room < 0 then before = 0 end -- the limit was lowered; permits taken stay taken
      allowed = (before - before % cost) / cost
    end
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
    -- needs: out size allowed before left
    -- sets: size
    out[size + 1] = allowed
    out[size + 2] = before / 1000000
    out[size + 3] = left
    size = size + 3
    change = change or allowed > 0
  until requests == '1' or begin > #requests
  if change then
      -- needs: key most room lasts open taken
      -- sets:
      if open then
        redis.call('INCRBY', key, taken .. '000000')
      else
        redis.call('SET', key, string.format('%d', most - room),
          'PX', string.format('%d', lasts))
      end
  else
  end
end

local ahead = #ARGV - #KEYS -- ARGV in front of the requests
for i = 1, #KEYS do
  local before = size
  local ok, failed = pcall(decide, KEYS[i], ARGV[ahead + i])
  if not ok or failed then
    for j = before + 2, size do
      out[j] = nil
    end
    size = before + 1
    out[size] = -1
  end
end
return out
