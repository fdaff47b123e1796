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
-- <if seek>
--        There is one -2 for a key that was not decided, because those before it took too long:
--        Redis serves nothing else until this script returns. Never for the first one.
-- </if seek>
local call = redis.pcall
-- <limits?/>
-- <if seek>
-- What blocks may do beyond the usual, in commands of half a microsecond. A key that is decided
-- takes the time that it needs.
local budget, late = 500, {}
-- </if seek>
-- <clock?/>
-- <config?/>
local out, size = {}, 0

-- <unless own>
local function decide(key, requests)
-- </unless own>
-- <if own>
local function decide(key, requests, front)
  -- <own/>
-- </if own>
  -- <if seek>
  if budget < 0 then return late end
  -- </if seek>
  -- <load/>
  local change, begin = repair, 1
  repeat
    local n, times = 1, 1
    if requests ~= '1' then
      local _, stop, permits, calls = string.find(requests, '^(%d+)x(%d+)', begin)
      n = permits + 0
      times = calls + 0
      begin = stop + 2
    end
    -- <fit/>
    -- <seek?/>
    -- <take/>
    -- <wait?/>
    -- <words/>
    change = change or allowed > 0
  until requests == '1' or begin > #requests
  if change then
    -- <store/>
  else
    -- <expire?/>
  end
end

local ahead = #ARGV - #KEYS -- ARGV in front of the requests
-- <shift?/>
for i = 1, #KEYS do
  local before = size
  -- <unless own>
  local ok, failed = pcall(decide, KEYS[i], ARGV[ahead + i])
  -- </unless own>
  -- <if own>
  local ok, failed = pcall(decide, KEYS[i], ARGV[ahead + i], ARGV[ahead - #KEYS + i] + 0)
  -- </if own>
  if not ok or failed then
    for j = before + 2, size do
      out[j] = nil
    end
    size = before + 1
    out[size] = -1
    -- <if seek>
    if failed == late then out[size] = -2 end
    -- </if seek>
  end
end
-- <flush?/>
return out
