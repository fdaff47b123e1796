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
--        there is one -1 instead, and the key was left as it was (unless the user
--        may not run a command that comes after the first command that writes).
local call = redis.pcall
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- needs:
-- sets: capacity permit flow sub
local capacity, permit, flow = ARGV[2] + 0, ARGV[3], ARGV[4]
local sub = string.sub
local out, size = {}, 0

local function decide(key, requests)
  -- needs: call key now capacity permit flow sub
  -- sets: missing repair
  local missing, repair = 0, false
  local state = call('GET', key)
  if state then
    if state.err then return state end
    local at = tonumber(sub(state, 1, 16))
    if at and at >= 0 and at < 2 ^ 53 and flow == '1' and sub(state, 18) == permit then
      missing = at - now
    else
      -- The state of another configuration. A denied call stores it too, as a state of
      -- this configuration: from now on the bucket refills at this rate.
      -- <inherit>
      -- Reads the state of a bucket of any configuration. The units missing are those at
      -- the anchor, which is the last step of a stepped bucket, or those at now if there
      -- is no anchor. Parts of a permit are rounded up, so that a changed rate never
      -- allows more.
      -- needs: now state permit flow missing repair
      -- sets: missing repair anchor
      local anchor
      local instant, unit, tail = string.match(state, '^(%d+)/([1-9]%d*)(.*)$')
      if unit then
        local speed, rest = string.match(tail, '^/([1-9]%d*)%+(%d+)$')
        if speed then
          missing = (instant - now) * speed + rest
          if speed ~= flow then repair = true end
        elseif tail == '' then
          missing = instant - now
          if flow ~= '1' then repair = true end
        else
          rest = string.match(tail, '^%+(%d+)$')
          if rest then
            missing = rest + 0
            anchor = instant + 0
          else
            unit = nil
          end
        end
      end
      if not unit then return {err = 'CORRUPT no state of a bucket'} end
      if unit ~= permit then
        local part = missing % unit
        missing = (missing - part) / unit * permit + math.ceil(part * permit / unit)
        if part * permit >= 2 ^ 53 then missing = missing + 1 end -- the product was rounded
        repair = true
      end
      -- </inherit>
      if anchor then -- it refilled in steps
        missing = missing - math.max(now - anchor, 0) * flow
        repair = true
      end
    end
    if missing < 0 then
      missing = 0
    elseif missing > capacity then -- the clock stepped back, or the capacity shrank
      missing = capacity
      repair = true
    end
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
    -- needs: n times capacity permit missing
    -- sets: cost allowed before
    local cost, allowed, before = n * permit, times, missing
    local room = capacity - missing
    if cost * allowed > room then
      allowed = (room - room % cost) / cost
    end
    -- needs: cost allowed missing
    -- sets: missing
    missing = missing + allowed * cost
    -- needs: out size allowed before
    -- sets: size
    out[size + 1] = allowed
    out[size + 2] = before
    size = size + 2
    change = change or allowed > 0
  until requests == '1' or begin > #requests
  if change then
      -- needs: key now permit flow missing
      -- sets:
      local value, wait
      if flow == '1' then
        wait = missing
        value = string.format('%016d/%s', now + wait, permit)
      else
        local part = missing % flow
        wait = (missing - part) / flow
        value = string.format('%016d/%s/%s+%d', now + wait, permit, flow, part)
      end
      -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
      -- as 1e+8.
      local ttl = wait / 1000
      redis.call('SET', key, value, 'PX', ttl - ttl % 2 + 3)
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
