-- Gives permits back that estimate.lua has taken. The blocks of an algorithm's script
-- replace the marked lines.
--
-- KEYS[1]  the key
-- ARGV     [1] "<permits>/<where>/<which>", the last two from the ticket; the rest is that
--          of the algorithm's script
-- Reply    the permits given back, rounded up
local key, n, times = KEYS[1], 1, 1
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
local back, where, which = string.match(ARGV[1], '^(%d+)/(%d+)/(%d+)$')
back = back + 0
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
-- The count is of the ticket's permits only if it is kept for as long as their window:
-- otherwise a shorter window of another rule has begun it again. By callers' clocks, a window
-- that is unused again stays for as long as their skew: otherwise a clock that is behind would
-- begin the window before it again.
-- needs: key back closes keep used last written margin where
-- sets: given
local given = 0
if closes == where + 0 and keep >= closes then given = math.min(back, used) end
if given > 0 and given == used then
  if written == '' then
    redis.call('UNLINK', key)
  else
    redis.call('SET', key, string.format('0/%d-%d%s', last, keep, written), 'PX', string.format('%d', margin + 3))
  end
elseif given > 0 then
  used = used - given
    -- needs: key now used last keep written margin
    -- sets:
    -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
    -- as 1e+8.
    local ttl = (keep - now) / 1000
    if margin > 0 then ttl = (keep - last) / 1000 end -- the margin is enough for a clock that is behind
    redis.call('SET', key, string.format('%d/%d-%d%s', used, last, keep, written),
      'PX', ttl - ttl % 2 + 3 + margin)
end
return {given}
