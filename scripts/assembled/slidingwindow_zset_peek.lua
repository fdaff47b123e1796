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
-- sets: limit window
local limit, window = ARGV[2] + 0, ARGV[3] + 0
local out, size = {}, 0
-- The blocks after it use:
--   at              the instant of the decision: now, or the last permit's if a clock is ahead
--   edge            permits up to this instant have left the window
--   used, stored    permits in the window; those in the key
--   newest          instant at which the last permit counts as taken
--   number, rule    the last permit's number; the rest of a name
--   longest, ends   the longest window that has to be kept; until when the key is needed
--   foreign         the last permit is of another rule, or of a clock that is ahead
--   repair          the server's clock stepped back
--   returned        1 if the last permit was given back
-- needs: call key mark now window
-- sets: at edge used stored newest number rule longest ends foreign repair returned last
local at, used, newest, ends, repair, returned = now, 0, 0, 0, false, 0
local rule, longest, number, foreign = '/' .. ARGV[3] .. mark, window, 1000000000, false
local edge = string.format('%d', now - window)
local last = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
if last.err then return last end
if last[1] then
  local recent = last[2] + 0
  newest = recent
  ends = recent + window
  number = tonumber(string.sub(last[1], 1, 10))
  foreign = recent > now or recent < 0 or not number or string.sub(last[1], 11) ~= rule
  if foreign then
    local theirs, kind, others = string.match(last[1], '^[1-9]%d%d%d%d%d%d%d%d%d/(%d+)(@?)(.*)$')
    if not theirs or recent < 0 or recent + theirs >= 2 ^ 53 then
      return {err = 'CORRUPT no state of a sliding window in a sorted set'}
    end
    local step = 0
    if recent > now and (mark == '@' or kind == '@') then -- behind the clock that dated the permit
      at = recent
      rule = '/' .. ARGV[3] .. kind
    end
    -- <rewind>
    -- The server's clock stepped back: permits with later instants count from now.
    -- needs: now at newest recent repair step
    -- sets: newest repair step
    if recent > at then
      repair = true
      step = recent - now
      newest = now
    end
    -- </rewind>
    others = '+' .. theirs .. '/' .. string.format('%d', recent + theirs) .. others
    ends = 0
    for width, final in string.gmatch(others, '%+(%d+)/(%d+)') do
      final = final - step
      if final > ends then ends = final end
      if width + 0 > window and final > at then
        rule = rule .. '+' .. width .. '/' .. string.format('%d', final)
        longest = math.max(longest, width + 0)
      end
    end
    if ends >= 2 ^ 53 then return {err = 'CORRUPT no state of a sliding window in a sorted set'} end
    newest = math.min(newest, ends - window) -- when the key expires, its permits are forgotten
    edge = string.format('%d', ends > at and at - window or recent)
    if string.sub(last[1], -1) == '!' then returned = 1 end
  end
  -- The numbers begin again before they have another digit, and at an instant of their own.
  if number >= 5000000000 and recent < at then number = 1000000000 end
  used = call('ZCOUNT', key, '(' .. edge, '+inf')
  if used > 0 then used = used - returned end
end
local stored = used
-- needs: n times limit used
-- sets: allowed before room
local allowed, before = times, used
local room = limit - used
if n * allowed > room then
  allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
end
-- Computes when the permit leaves the window that makes room. It is one of this execution
-- if the stored ones are not enough.
-- needs: allowed at call key limit n newest now returned stored times used window
-- sets: wait
local wait = 0
if allowed < times then
  local over, leaves = used + (allowed + 1) * n - limit, newest -- so many permits have to leave
  if allowed > 0 then leaves = at end
  if over <= stored then
    local rank = over - stored - 1 - returned -- from the end
    leaves = math.min(call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + 0, leaves)
  end
  wait = leaves + window - now
end
-- needs: out size now newest allowed before wait
-- sets: size
out[size + 1] = allowed
out[size + 2] = newest - now
out[size + 3] = wait
out[size + 4] = before
size = size + 4
return out
