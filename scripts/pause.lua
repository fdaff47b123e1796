-- A pause: no call is allowed before an instant, which is only ever moved later. Then all are;
-- or one goes first, and the others follow its success.
--
-- KEYS[1]  the key
-- ARGV     [1] permits, which are not counted; [2] how long the others wait for the call that
--          goes first, microseconds, or 0: all go at once; last spare and the caller's clock,
--          if that decides (callersclock.lua)
-- State    "<instant>/<length>/<first>/<strikes>/<episode>/<forget>", instants in
--          microseconds, and "@" if a caller's clock wrote it:
--            length   of the pause when it got its instant
--            first    when the call went that goes first; 0 for none
--            strikes  and when the episode of the last one is over, and when all are forgotten
-- Reply    the words
-- Words    requests allowed; 0: nobody is held back, 1: the key is paused, 2: one goes first;
--          microseconds until the denied request is allowed at the latest
local key, times = KEYS[1], 1
local call = redis.pcall

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

-- <config>
-- needs:
-- sets: lease
local lease = ARGV[2] + 0
-- </config>

-- <load>
-- The blocks after it use:
--   moved    the state is written
--   written  whose clock the state is of
--   repair   the server's clock stepped back: what lies too far ahead begins now
-- needs: call key mark now
-- sets: moved episode first forget instant length repair state strikes written
local instant, length, first, strikes, episode, forget = 0, 0, 0, 0, 0, 0
local written, repair, moved = mark, false, false
local state = call('GET', key)
if state then
  if state.err then return state end
  local a, b, c, d, e, f, by = string.match(state, '^(%d+)/(%d+)/(%d+)/(%d+)/(%d+)/(%d+)(@?)$')
  if not a then return {err = 'CORRUPT no state of a pause'} end
  instant = a + 0
  length = b + 0
  first = c + 0
  strikes = d + 0
  episode = e + 0
  forget = f + 0
  if math.max(instant, length, first, strikes, episode, forget) >= 2 ^ 53 then
    return {err = 'CORRUPT no state of a pause'}
  end
  if by == '@' then written = by end
  if now >= forget then strikes = 0 end
  -- <rewind>
  -- needs: now episode first forget instant length repair written
  -- sets: episode first forget instant repair
  if written == '' and instant - now > length then
    local step = instant - now - length
    instant = now + length
    episode = math.max(episode - step, 0)
    forget = math.max(forget - step, 0)
    repair = true
  end
  if written == '' and first > now then
    first = now
    repair = true
  end
  -- </rewind>
end
-- </load>

-- <fit>
-- needs: first instant lease now times
-- sets: allowed holds left
local allowed, holds, left = times, 0, 0
if now < instant then
  allowed = 0
  holds = 1
  left = instant - now
elseif lease > 0 and instant > 0 then
  local free = instant -- since then the next one may go
  if first > 0 then free = first + lease end
  if now < free then
    allowed = 0
    holds = 2
    left = free - now
  elseif now < free + lease then
    allowed = math.min(times, 1)
    holds = 2
  end
end
-- </fit>

-- <take>
-- needs: allowed moved first holds left lease now
-- sets: moved first left
if allowed > 0 and holds == 2 then
  first = now
  left = lease
  moved = true
end
-- </take>

if allowed > 0 or repair then
  -- <store>
  -- needs: moved episode first forget instant key lease length now repair spare strikes written
  -- sets:
  if moved or repair then
    local keep = strikes > 0 and forget or 0
    if instant > 0 then keep = math.max(keep, instant + lease) end
    if first > 0 then keep = math.max(keep, first + 2 * lease) end
    if keep > now then
      local text = string.format('%d/%d/%d/%d/%d/%d', instant, length, first, strikes, episode, forget)
      redis.call('SET', key, text .. written,
        'PX', string.format('%d', math.floor((keep - now) / 1000) + 2 + spare))
    else
      redis.call('UNLINK', key)
    end
  end
  -- </store>
else
  -- <expire>
  -- A key that has lost its TTL gets one.
  -- needs: first forget instant key lease now spare state
  -- sets:
  if state and redis.call('PTTL', key) == -1 then
    local keep = math.max(instant + lease, first + 2 * lease, forget, now)
    redis.call('SET', key, state, 'PX', string.format('%d', math.floor((keep - now) / 1000) + 2 + spare))
  end
  -- </expire>
end

-- <answer>
-- needs: allowed holds left
-- sets:
return {allowed, holds, left}
-- </answer>

--[[ In place of the answer when a run of requests is decided:
-- <words>
-- needs: out size allowed holds left
-- sets: size
out[size + 1] = allowed
out[size + 2] = holds
out[size + 3] = left
size = size + 3
-- </words>
-- <charge>
-- Nothing is counted, and nobody goes first by it.
-- needs: allowed holds times
-- sets: allowed holds
allowed = times
holds = 0
-- </charge>
-- <ticket>
-- When it went, if it goes first.
-- needs: out size allowed first holds
-- sets:
out[size + 1] = allowed > 0 and holds == 2 and first or 0
out[size + 2] = 0
-- </ticket>
-- <giveback>
-- The call that went first has not been made: another may go.
-- needs: back first lease now where moved
-- sets: moved first given
local given = 0
if first > 0 and first == where + 0 then
  first = math.max(now - lease, 1)
  given = back
  moved = true
  -- <store/>
end
-- </giveback>
-- <pause>
-- A pause, a success, or a strike, see operations.lua.
-- needs: kind amount which steps moved episode first forget instant lease length now strikes
-- sets: moved episode first forget instant length strikes
local span = -1
if kind == 'p' then
  span = amount + 0
elseif kind == 't' and now >= episode then
  strikes = strikes + 1
  local k = 0
  for step in string.gmatch(steps, '%d+') do
    k = k + 1
    if k <= strikes then span = step + 0 end -- the last one is for all further strikes
  end
  episode = now + math.max(span, amount + 0)
  forget = episode + which
  moved = true
elseif kind == 'f' and lease > 0 and instant > 0 and now >= instant then
  instant = 0
  length = 0
  first = 0
  moved = true
end
if span >= 0 and now + span > instant then
  instant = now + span
  length = span
  first = 0
  moved = true
end
-- </pause>
]]
