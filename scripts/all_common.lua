-- Requests to several limiters that all have the same key of one limiter, as one for all
-- users: all.lua, but that key is read once and written once. KEYS and ARGV are the same;
-- in the reply the words of the limiter with the common key are the last of a request.
-- <if several>
-- All requests have equal arguments of that limiter.
-- </if several>
local call = redis.pcall
-- <limits?/>
local budget, late = 500, {}
-- <clock?/>
-- <shape/>
local out, size = {}, 0
-- <if several>
local ahead = #ARGV - #KEYS / limiters * (limiters + 2) -- ARGV in front of the requests
-- <shift?/>
-- </if several>

-- The other limiters decide, and so many of the equal requests at most are allowed.
local function inner(skipped, request, times, all)
  -- <if several>
  local front = ARGV[request + limiters + 1] + 0
  -- </if several>
  -- <limiters/>
  return nil, all
end

local function decide()
  local key = KEYS[common]
  -- <if several>
  local front = ARGV[ahead + limiters + 2] + 0 -- of the first request
  -- </if several>
  -- <config/>
  -- <load/>
  local change = repair
  -- A request that fails returns before it has taken anything.
  local function answer(i)
    if i > 0 and budget < 0 then return late end
    -- <unless several>
    local request = configured + 1 + i * (limiters + 1)
    -- </unless several>
    -- <if several>
    local request = ahead + 1 + i * (limiters + 2)
    -- </if several>
    -- <request/>
    -- <fit/>
    -- <seek?/>
    local failed, all = inner(i * limiters, request, times, allowed)
    if failed then return failed end
    size = size + 1
    out[size] = allowed
    if allowed > all then -- another limiter allows fewer, and this one denies nothing
      allowed = all
      times = all
    end
    -- <take/>
    -- <wait?/>
    -- <words/>
    -- <settle/>
    change = change or allowed > 0
  end
  for i = 0, #KEYS / limiters - 1 do
    local sized = size
    local ok, failed = pcall(answer, i)
    if not ok or failed then
      if ok and failed.outside then return failed end -- of calendarwindow.lua: nothing was done
      for j = sized + 2, size do
        out[j] = nil
      end
      size = sized + 1
      out[size] = -1
      if failed == late then out[size] = -2 end
    end
  end
  if change then
    -- <store/>
  else
    -- <expire?/>
  end
  -- <sealed/>
end

local ok, failed = pcall(decide)
if ok and failed and failed.outside then return failed end
if not ok or failed then -- the common key cannot be read or written
  out = {}
  for i = 1, #KEYS / limiters do
    out[i] = -1
  end
end
-- <flush?/>
return out
