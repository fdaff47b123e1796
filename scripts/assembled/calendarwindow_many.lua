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
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- needs: now
-- sets: after ends limit opens
local limit, opens, ends, after = ARGV[2] + 0, ARGV[4] + 0, ARGV[5] + 0, ARGV[6] + 0
if now < opens then
  after = ends
  ends = opens
  opens = ARGV[3] + 0
elseif now >= ends then
  opens = ends
  ends = after
  after = ARGV[7] + 0
end
if now < opens or now >= ends then return {err = string.format('OUTSIDE %.0f', now), outside = true} end
local out, size = {}, 0

local function decide(key, requests)
  -- The blocks after it use:
  --   used     the permits taken, the last of them at the instant last
  --   keep     when the windows of the rules that took them have ended
  --   closes   when this rule's window ends, if it has taken any
  --   lasts    how long this rule's window is
  --   written  whose clock the state is of
  --   margin   what the TTL is longer by, milliseconds
  --   repair   the server's clock stepped back: the state is dated now, with its count
  -- needs: after call ends key mark now opens spare
  -- sets: state used last keep closes lasts written margin repair
  local used, last, keep, closes, lasts, repair = 0, now, ends, ends, ends - opens, false
  local written, margin = mark, spare
  if mark == '@' then written = '@' .. spare end
  local state = call('GET', key)
  if state then
    if state.err then return state end
    local count, latest, till, by = string.match(state, '^(%d+)/(%d+)%-(%d+)(@?%d*)$')
    if not count then return {err = 'CORRUPT no state of a calendar window'} end
    latest = latest + 0
    till = till + 0
    if latest >= till or till + count >= 2 ^ 53 then return {err = 'CORRUPT no state of a calendar window'} end
    if latest >= opens and now < till then
      used = count + 0
      keep = till
      if by ~= '' then
        local longer = tonumber(string.sub(by, 2)) or 2 ^ 53
        if longer > 86400000 then return {err = 'CORRUPT no state of a calendar window'} end -- more than a day
        margin = math.max(spare, longer)
        written = '@' .. margin
      end
      if latest >= ends then -- another caller's clock is ahead, or the server's stepped back
        if mark == '' and by == '' and latest >= after then
          keep = math.max(ends, till - (latest - now))
          latest = now
          repair = true
        elseif latest < after then -- the window that has begun goes on, or it could allow its limit twice
          closes = after
          lasts = after - ends
        else
          closes = till
        end
      end
      last = math.max(latest, now)
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
    -- needs: n times limit used
    -- sets: allowed before
    local allowed, before = times, math.max(limit - used, 0)
    if n * allowed > before then
      allowed = (before - before % n) / n
    end
    -- needs: n allowed used keep closes
    -- sets: used keep
    used = used + allowed * n
    if allowed > 0 then keep = math.max(keep, closes) end
    -- needs: out size now keep closes lasts allowed before
    -- sets: size
    out[size + 1] = allowed
    out[size + 2] = before
    out[size + 3] = math.min(keep, closes) - now
    out[size + 4] = lasts
    size = size + 4
    change = change or allowed > 0
  until requests == '1' or begin > #requests
  if change then
      -- needs: key now used last keep written margin
      -- sets:
      -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
      -- as 1e+8.
      local ttl = (keep - now) / 1000
      if margin > 0 then ttl = (keep - last) / 1000 end -- the margin is enough for a clock that is behind
      redis.call('SET', key, string.format('%d/%d-%d%s', used, last, keep, written),
        'PX', ttl - ttl % 2 + 3 + margin)
  else
      -- A key that has lost its TTL gets one.
      -- needs: key now state keep margin
      -- sets:
      local ttl = (keep - now) / 1000
      if redis.call('PTTL', key) == -1 then redis.call('SET', key, state, 'PX', ttl - ttl % 2 + 3 + margin) end
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
