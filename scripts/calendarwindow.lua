-- Calendar window: days, weeks or months in a time zone. The caller sends where the windows
-- around its own clock begin, and the clock that decides picks the window. So the caller's
-- clock may be wrong by up to a window; beyond that the script says what time it is.
--
-- There is one counter. It goes on while its last permit was taken since this rule's window
-- began, so that rules and callers may disagree about when that was.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] limit; [3] to [7] when five windows begin, microseconds: the
--          one before, the caller's own, and the three after it; last spare and the
--          caller's clock, if that decides (callersclock.lua)
-- State    "<permits used>/<when the last was taken>-<end>", microseconds, and "@<spare>"
--          if a caller's clock wrote it; then "~" and how long after the last was taken slices
--          may be spent, if any are out. The end is the latest of the rules that have taken
--          permits
-- Reply    the words of a run. "OUTSIDE <time>" if the clock that decides is in none of the
--          first three windows; then nothing was done
-- Words    requests allowed, permits left before the run, microseconds left of the
--          window, its length in microseconds
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

-- <config>
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
-- </config>

-- <load>
-- The blocks after it use:
--   used     the permits taken, the last of them at the instant last
--   keep     when the windows of the rules that took them have ended
--   closes   when this rule's window ends, if it has taken any
--   lasts    how long this rule's window is
--   written  whose clock the state is of
--   margin   what the TTL is longer by, milliseconds
--   repair   the server's clock stepped back: the state is dated now, with its count
--   sliced   until when slices may be spent, if that is after last: no rule begins the count again before
-- needs: after call ends key mark now opens spare
-- sets: state used last keep closes lasts written margin repair sliced
local used, last, keep, closes, lasts, repair, sliced = 0, now, ends, ends, ends - opens, false, 0
local written, margin = mark, spare
if mark == '@' then written = '@' .. spare end
local state = call('GET', key)
if state then
  if state.err then return state end
  local count, latest, till, by, out = string.match(state, '^(%d+)/(%d+)%-(%d+)(@?%d*)~?(%d*)$')
  if not count then return {err = 'CORRUPT no state of a calendar window'} end
  latest = latest + 0
  till = till + 0
  if latest >= till or till + count >= 2 ^ 53 then return {err = 'CORRUPT no state of a calendar window'} end
  out = latest + (tonumber(out) or 0)
  if (latest >= opens or now < out) and now < till then
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
        out = out - (latest - now)
        latest = now
        repair = true
      elseif latest < after then -- the window that has begun goes on, or it could allow its limit twice
        closes = after
        lasts = after - ends
      else
        closes = till
      end
    elseif latest < opens then
      closes = out
    end
    last = math.max(latest, now)
    sliced = out
  end
end
-- </load>

-- <fit>
-- needs: n times limit used
-- sets: allowed before
local allowed, before = times, math.max(limit - used, 0)
if n * allowed > before then
  allowed = (before - before % n) / n
end
-- </fit>

-- <take>
-- needs: n allowed used keep closes ends
-- sets: used keep closes
used = used + allowed * n
if allowed > 0 then
  closes = math.max(closes, ends)
  keep = math.max(keep, closes)
end
-- </take>

if allowed > 0 or repair then
  -- <store>
  -- needs: key now used last keep written margin sliced
  -- sets:
  -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
  -- as 1e+8.
  local ttl = (keep - now) / 1000
  if margin > 0 then ttl = (keep - last) / 1000 end -- the margin is enough for a clock that is behind
  local leased = sliced > last and string.format('~%d', sliced - last) or ''
  redis.call('SET', key, string.format('%d/%d-%d%s%s', used, last, keep, written, leased),
    'PX', ttl - ttl % 2 + 3 + margin)
  -- </store>
else
  -- <expire>
  -- A key that has lost its TTL gets one.
  -- needs: key now state keep margin
  -- sets:
  local ttl = (keep - now) / 1000
  if redis.call('PTTL', key) == -1 then redis.call('SET', key, state, 'PX', ttl - ttl % 2 + 3 + margin) end
  -- </expire>
end

-- <answer>
-- needs: now keep closes lasts allowed before
-- sets:
return {allowed, before, math.min(keep, closes) - now, lasts}
-- </answer>

--[[ In place of the answer when a run of requests is decided:
-- <words>
-- needs: out size now keep closes lasts allowed before
-- sets: size
out[size + 1] = allowed
out[size + 2] = before
out[size + 3] = math.min(keep, closes) - now
out[size + 4] = lasts
size = size + 4
-- </words>
-- <lease>
-- A slice gets so many of the requests (times), and of the last permits one even if nobody waits for it. It
-- lasts so long (long), but not beyond the end of the window.
-- needs: closes ends least limit long now times used
-- sets: long times
local fits = math.max(limit - used, 0)
times = math.min(times, math.max(math.min(fits, math.max(least, 1)), math.floor(fits / 4)))
long = times > 0 and math.min(long, math.max(closes, ends) - now) or 0
-- </lease>
-- <slice>
-- needs: closes last long out size sliced
-- sets: sliced
if long > 0 then sliced = math.max(sliced, last + long) end
out[size + 1] = closes
out[size + 2] = 0
-- </slice>
-- <charge>
-- After fit: as many requests as the debt has room for.
-- needs: n times used allowed
-- sets: allowed
local room = 4e12 - used
allowed = times
if n * allowed > room then allowed = math.max((room - room % n) / n, 0) end
-- </charge>
-- <ticket>
-- The window's end.
-- needs: out size closes
-- sets:
out[size + 1] = closes
out[size + 2] = 0
-- </ticket>
-- <giveback>
-- The count is of the ticket's permits only if it is kept for as long as their window:
-- otherwise a shorter window of another rule has begun it again. By callers' clocks, a window
-- that is unused again stays for as long as their skew: otherwise a clock that is behind would
-- begin the window before it again.
-- needs: key back closes keep used last written margin where
-- sets: given used
local given = 0
if where == '' or closes == where + 0 and keep >= closes then given = math.min(back, used) end
if given > 0 and given == used then
  if written == '' then
    redis.call('UNLINK', key)
  else
    redis.call('SET', key, string.format('0/%d-%d%s', last, keep, written), 'PX', string.format('%d', margin + 3))
  end
elseif given > 0 then
  used = used - given
  -- <store/>
end
-- </giveback>
]]
