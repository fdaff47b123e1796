-- At most so many permits of a key held at once. A hold's permits are free again when it
-- gives them back, or when its lease has ended.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] limit; [3] lease, microseconds; [4] the rule, as the names of
--          permits end; [5] the hold's id; last spare and the caller's clock, if that
--          decides (callersclock.lua)
-- State    a member for each permit, "<number in its hold>/<id>/<lease>", its score the
--          instant at which the lease ends. By a caller's clock the name ends with
--          "@<spare>", and the score is later by spare: that is how far the clock may be
--          behind the one that reads it. A permit whose lease has ended stays until its
--          place is needed, so a permit that is there is one that nobody else got.
-- Reply    the words
-- Words    requests allowed; permits held, those of this call included; microseconds until
--          the denied request fits at the latest, or for a hold that was there 1, and -1 if it
--          has not so many permits; until the last lease has ended, if none is extended
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall
local budget = 0 -- of an execution for many requests, see many.lua

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

-- <config>
-- needs:
-- sets: limit lease rule
local limit, lease, rule = ARGV[2] + 0, ARGV[3] + 0, ARGV[4]
-- </config>

-- <hold>
-- needs:
-- sets: id
local id = ARGV[5]
-- </hold>

-- <load>
-- The blocks after it use:
--   margin   how far a caller's clock may be ahead, microseconds
--   edge     leases up to this instant have ended
--   used     permits of the leases that have not; stored are those of them in the key
--   ends     when the last lease does
--   longest  the lease, or a longer one of the last permit's
--   repair   the server's clock stepped back: no lease is longer than from now on
--   members  permits that are to be stored, each with its score before it; and of each of the
--            callers' own ids the number of its permits
-- needs: call key lease mark now rule spare
-- sets: edge ends last longest margin members repair stored used
local margin, used, ends, longest, repair, members = spare * 1000, 0, 0, lease, false, {}
local edge = string.format('%d', now - margin)
local last = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
if last.err then return last end
if last[1] then
  ends = last[2] + 0
  if ends >= 2 ^ 53 then return {err = 'CORRUPT no state of permits in flight'} end
  local theirs, kind = lease, mark
  if string.sub(last[1], -#rule) ~= rule then
    theirs, kind = string.match(last[1], '^[1-9]%d*/%w+/([1-9]%d*)(@?)%d*$')
    if not theirs then return {err = 'CORRUPT no state of permits in flight'} end
    theirs = theirs + 0
  end
  -- <rewind>
  -- needs: now mark lease ends longest repair theirs kind
  -- sets: ends longest repair
  if ends > now + theirs and mark == '' and kind == '' then
    repair = true
    longest = math.max(lease, theirs)
    ends = now + longest
  end
  -- </rewind>
  used = call('ZCOUNT', key, '(' .. edge, '+inf')
end
local stored = used
-- </load>

-- <fit>
-- An id of a caller's own begins with a small letter, and may be asked for again, also by equal
-- requests (times): again is then 1 for a hold that is there, and -1, with which nothing is taken,
-- if that has not n permits.
-- needs: call id key last lease limit margin mark members n now rule times used
-- sets: again allowed held own
local allowed, again, held = times, 0 -- held: when the lease ends that this hold has already
local own = (string.byte(id) or 0) > 96
if members[id] then -- of this execution
  again = members[id] == n and 1 or -1
  if again < 0 then allowed = 0 end
  held = now + lease + margin
elseif last[1] and (own or used + n > limit or mark == '@') then
  held = call('ZSCORE', key, '1/' .. id .. rule)
  held = held and held + 0 > now - margin and held + 0 or nil
  if own and held then
    again = 1
    local final = call('ZSCORE', key, n .. '/' .. id .. rule) -- what has ended may be there still
    local more = call('ZSCORE', key, n + 1 .. '/' .. id .. rule)
    if not final or final + 0 <= now - margin or more and more + 0 > now - margin then
      again = -1
      allowed = 0
    end
  end
end
if not held and used + n > limit then allowed = 0 end -- held: the same call again
-- </fit>

-- <seek>
-- The lease that ends last does not say whether the server's clock has stepped back since a
-- shorter one began. So where there are leases of several lengths, each is looked at: the
-- thousand that end last.
-- needs: again allowed budget call edge ends key last lease limit longest margin mark n now repair rule stored times used
-- sets: budget ends repair wait
local wait = again
if allowed < times and again == 0 then
  local rank = used + n - limit - 1 -- of the last lease that has to end
  local new, leaves = used - stored, now + lease + margin -- permits of this execution, and when their leases end
  local sooner, name = rank + 1, rule
  if new > 0 then sooner = call('ZCOUNT', key, '(' .. edge, string.format('%d', leaves)) end
  if rank < sooner or rank >= sooner + new then
    local skipped = string.format('%d', rank < sooner and rank or rank - new)
    local blocking = call('ZRANGEBYSCORE', key, '(' .. edge, '+inf', 'WITHSCORES', 'LIMIT', skipped, '1')
    name = blocking[1]
    leaves = blocking[2] + 0
  end
  if repair then leaves = math.min(leaves, now + longest) end
  if mark == '' and (last[1] and string.sub(last[1], -#rule) ~= rule or string.sub(name, -#rule) ~= rule) then
    local later, final = call('ZRANGE', key, '-1000', '-1', 'WITHSCORES'), {}
    budget = budget - #later
    for i = 1, #later, 2 do
      local stops, theirs = later[i + 1] + 0, string.match(later[i], '/(%d+)$') -- none of a caller's clock
      if theirs and stops > now + theirs then
        repair = true
        stops = now + theirs
      end
      if stops > now then final[#final + 1] = stops end
    end
    for _ = 1, new do
      final[#final + 1] = now + lease
    end
    table.sort(final)
    leaves = math.min(leaves, final[rank + 1] or leaves)
    if #later < 2000 then ends = final[#final] end
  end
  wait = leaves + margin - now
end
-- </seek>

-- <take>
-- needs: allowed ends held id key lease margin mark members n now own rule used
-- sets: ends used
if allowed > 0 and not members[id] then
  local score = now + lease + margin
  ends = math.max(ends, score)
  if held and mark == '@' then score = math.max(score, held) end
  score = string.format('%d', score)
  for i = 1, n + 0 do -- no hold has more than 1,000
    members[#members + 1] = score
    members[#members + 1] = i .. '/' .. id .. rule
  end
  if not held then
    used = used + n
  elseif own then -- those behind it in this execution wait for its new end
    redis.call('ZADD', key, unpack(members, #members - 2 * n + 1))
  end
  if own then members[id] = n end
end
-- </take>

if allowed > 0 or repair then
  -- <store>
  -- needs: budget ends key last lease limit members now repair spare used
  -- sets: budget
  local left, kept, ttl = -2, used, lease / 1000 + spare
  if last[1] then left = redis.call('PTTL', key) end -- otherwise there is no key
  if repair then
    local later = redis.call('ZRANGE', key, '-1000', '-1', 'WITHSCORES') -- the next call goes on
    budget = budget - #later
    for i = 1, #later, 2 do
      local theirs = string.match(later[i], '/(%d+)$') -- none of a caller's clock
      if theirs and later[i + 1] + 0 > now + theirs then
        redis.call('ZADD', key, string.format('%d', now + theirs), later[i])
      end
    end
  end
  if members[1] then
    for first = 1, #members, 2000 do
      redis.call('ZADD', key, unpack(members, first, math.min(first + 1999, #members)))
    end
    -- At most a thousand leases that have ended are dropped at a time, which is at least as
    -- many as there are permits beyond the limit.
    if last[1] then kept = redis.call('ZCARD', key) end
    if kept > limit and kept > used then
      redis.call('ZREMRANGEBYRANK', key, '0', math.min(kept - used, 1000) - 1)
      budget = budget - math.min(kept - used, 1000) / 2
    end
  end
  -- The TTL is a little longer than needed, and odd: Redis 7.2.0 writes 100000000
  -- as 1e+8. It is for the lease that ends last: a longer one may have been released. A repair does
  -- not know which one that will be.
  local most = math.min((ends - now) / 1000, 2 ^ 41) + spare
  local other = left == -1 or left > most + 952 and not repair -- it was lost, or is too long
  if other then ttl = math.max(ttl, most) end
  if other or members[1] and left < ttl + 1 then redis.call('PEXPIRE', key, ttl - ttl % 2 + 951) end
  -- </store>
else
  -- <expire>
  -- A key that has lost its TTL gets one.
  -- needs: key now spare ends
  -- sets:
  if redis.call('PTTL', key) == -1 then
    local ttl = math.max(math.min((ends - now) / 1000, 2 ^ 41), 0) + spare
    redis.call('PEXPIRE', key, ttl - ttl % 2 + 951)
  end
  -- </expire>
end

-- <answer>
-- needs: now margin used ends allowed wait
-- sets:
return {allowed, used, wait, math.max(ends + margin - now, 0)}
-- </answer>

--[[ In place of the answer when several limiters are decided:
-- <words>
-- needs: out size now margin used ends allowed wait
-- sets: size
out[size + 1] = allowed
out[size + 2] = used
out[size + 3] = wait
out[size + 4] = math.max(ends + margin - now, 0)
size = size + 4
-- </words>
]]
