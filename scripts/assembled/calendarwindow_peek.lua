-- Looks at a key for one request for one permit: takes nothing and writes nothing.
-- KEYS and ARGV are those of the algorithm's script, whose blocks replace the marked
-- lines. The reply is the words of a run of one request, before it has taken anything.
local key, n, times = KEYS[1], ARGV[1], 1
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
-- needs: n times limit used
-- sets: allowed before
local allowed, before = times, math.max(limit - used, 0)
if n * allowed > before then
  allowed = (before - before % n) / n
end
-- needs: out size now keep closes lasts allowed before
-- sets: size
out[size + 1] = allowed
out[size + 2] = before
out[size + 3] = math.min(keep, closes) - now
out[size + 4] = lasts
size = size + 4
return out
