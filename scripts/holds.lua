-- Holds and releases of several keys, decided as if made one after the other, the releases of a
-- key before its holds. The blocks of inflight.lua replace the marked lines.
--
-- KEYS   the keys, each once
-- ARGV   [1] unused; [2] limit; [3] lease; [4] rule; then for each key, joined by
--        commas, "<permits>h<id>" for a hold and "<permits>r<id>" for a release; last spare
--        and the caller's clock, if that decides (callersclock.lua)
-- Reply  for each hold its words, for each release 1. If a key fails there is one -1 instead:
--        its permits were released, and none was taken (unless the user may not run a command
--        that comes after the first command that writes). The error of a lone operation is
--        replied as an error. There is one -2 for a key for which there was no time, see many.lua
local call = redis.pcall
local budget, late = 500, {}
-- <clock/>
-- <config/>
local out, size = {}, 0

local function decide(key, operations)
  if budget < 0 then return late end
  local permits, kind, id, stop = string.match(operations, '^(%d+)([hr])(%w+),?()')
  if permits == '1' and kind == 'r' and stop > #operations then -- as most are
    size = size + 1
    out[size] = 1
    redis.call('ZREM', key, '1/' .. id .. rule)
    return
  end
  if stop <= #operations or kind == 'r' then
    local names, holds = {}, false
    local released = size
    for permits, kind, id in string.gmatch(operations, '(%d+)([hr])(%w+),?') do
      if kind == 'h' then
        holds = true
      else
        released = released + 1
        out[released] = 1
        for i = 1, permits + 0 do
          names[#names + 1] = i .. '/' .. id .. rule
        end
      end
    end
    for first = 1, #names, 2000 do
      redis.call('ZREM', key, unpack(names, first, math.min(first + 1999, #names)))
    end
    if not holds then
      size = released
      return
    end
  end
  -- <load/>
  local change = repair
  repeat
    if kind == 'r' then
      size = size + 1
      out[size] = 1
    else
      local n, times = permits + 0, 1
      -- <fit/>
      -- <seek/>
      -- <take/>
      -- <words/>
      change = change or allowed > 0
    end
    permits, kind, id, stop = string.match(operations, '^(%d+)([hr])(%w+),?()', stop)
  until not kind
  if change then
    -- <store/>
  else
    -- <expire/>
  end
end

local ahead = #ARGV - #KEYS -- ARGV in front of the operations
-- <shift?/>
if #KEYS == 1 and not string.find(ARGV[ahead + 1], ',', 1, true) then
  return decide(KEYS[1], ARGV[ahead + 1]) or out
end
for i = 1, #KEYS do
  local before = size
  local ok, failed = pcall(decide, KEYS[i], ARGV[ahead + i])
  if not ok or failed then
    for j = #out, before + 2, -1 do
      out[j] = nil
    end
    size = before + 1
    out[size] = -1
    if failed == late then out[size] = -2 end
  end
end
return out
