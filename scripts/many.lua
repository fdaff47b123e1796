-- Driver: requests for several keys, decided as if made one after the other.
-- Each key is loaded once and stored once.
--
-- KEYS     the keys, each once
-- ARGV     [1] unused, then the algorithm's, then for each key its requests:
--          "1" for one permit, else runs "<permits>x<times>" joined by commas,
--          last the caller's clock in microseconds where it decides
-- Reply    for each key and run the number of requests granted, which are its
--          first, and the algorithm's words; or one -1 for a key that failed
--          and was left as it was (unless a user may not run a command that
--          comes after the first that writes)
local call = redis.pcall
--@ clock
--@ config
local out, size = {}, 0

local function decide(key, requests)
--@ load
  local change, from = stale, 1
  repeat
    local n, times = 1, 1
    if requests ~= '1' then
      local _, upto, permits, calls = string.find(requests, '^(%d+)x(%d+)', from)
      n = permits + 0
      times = calls + 0
      from = upto + 2
    end
--@ take
--@ emit
    change = change or granted > 0
  until requests == '1' or from > #requests
  if change then
--@ store
  else
--@ keep
  end
end

local first = #ARGV - #KEYS
--@ shift
for i = 1, #KEYS do
  local before = size
  local ok, failed = pcall(decide, KEYS[i], ARGV[first + i])
  if not ok or failed then
    for j = before + 2, size do
      out[j] = nil
    end
    size = before + 1
    out[size] = -1
  end
end
return out
