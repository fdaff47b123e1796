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
-- sets: limit lease rule id
local limit, lease, rule, id = ARGV[2] + 0, ARGV[3] + 0, ARGV[4], ARGV[5]
local out, size = {}, 0
-- The blocks after it use:
--   margin   how far a caller's clock may be ahead, microseconds
--   edge     leases up to this instant have ended
--   used     permits of the leases that have not; stored are those of them in the key
--   ends     when the last lease does
--   longest  the lease, or a longer one of the last permit's
--   repair   the server's clock stepped back: no lease is longer than from now on
--   members  permits that are to be stored, each with its score before it
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
-- needs: call id key last limit margin n now rule times used
-- sets: allowed held
local held = last[1] and call('ZSCORE', key, '1/' .. id .. rule) -- when the lease ends that this hold has already
held = held and held + 0 > now - margin and held + 0 or nil
local allowed = times
if not held and used + n * times > limit then allowed = 0 end -- held: the same call again
-- The lease that ends last does not say whether the server's clock has stepped back since a
-- shorter one began. So where there are leases of several lengths, each is looked at: the
-- thousand that end last.
-- needs: allowed call edge ends key last lease limit longest margin mark n now repair rule stored times used
-- sets: ends repair wait
local wait = 0
if allowed < times then
  local rank = used + n * times - limit - 1 -- of the last lease that has to end
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
-- needs: out size now margin used ends allowed wait
-- sets: size
out[size + 1] = allowed
out[size + 2] = used
out[size + 3] = wait
out[size + 4] = math.max(ends + margin - now, 0)
size = size + 4
return out
