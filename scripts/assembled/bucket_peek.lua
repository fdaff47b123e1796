-- Looks at a key for one request for one permit: takes nothing and writes nothing.
-- KEYS and ARGV are those of the algorithm's script, whose blocks replace the marked
-- lines. The reply is the words of a run of one request, before it has taken anything.
local key, n, times = KEYS[1], ARGV[1], 1
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
-- needs: n times capacity permit missing
-- sets: cost allowed before
local cost, allowed, before = n * permit, times, missing
local room = capacity - missing
if cost * allowed > room then
  allowed = (room - room % cost) / cost
end
-- needs: out size allowed before
-- sets: size
out[size + 1] = allowed
out[size + 2] = before
size = size + 2
return out
