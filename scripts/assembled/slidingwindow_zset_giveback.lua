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
-- needs:
-- sets: limit window
local limit, window = ARGV[2] + 0, ARGV[3] + 0
local back, where, which = string.match(ARGV[1], '^(%d+)/(%d+)/(%d+)$')
back = back + 0
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
-- which is the number of the ticket's first member. Its members have neighbouring ranks.
-- The name of the last permit stays for as long as callers' clocks may be apart: without its
-- instant, a clock that is behind would find the window of that time unused again.
-- needs: key call now mark spare window at last returned back where which
-- sets: given
local given, rank, final = 0, nil, nil
local members = call('ZRANGEBYSCORE', key, where, where)
for i = 1, #members do
  local name = tonumber(string.match(members[i], '^(%d+)/.*[^!]$') or '')
  if name and name >= which + 0 and name < which + back then
    if given == 0 then rank = call('ZCOUNT', key, '-inf', '(' .. where) + i - 1 end
    given = given + 1
    final = members[i]
  end
end
if given > 0 then
  local stays = final == last[1] and string.find(final, '@', 1, true)
  if stays then redis.call('ZADD', key, where, final .. '!') end
  redis.call('ZREMRANGEBYRANK', key, rank, rank + given - 1)
  -- An instant that stays before other permits keeps its TTL: other rules count from it when
  -- the state ends.
  local ttl
  if stays or returned == 1 then
    if call('ZCOUNT', key, '-inf', '+inf') == 1 then ttl = (at - now) / 1000 end
  else
    local top = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
    if top[1] and top[2] + 0 < where + 0 and string.sub(top[1], 11) == '/' .. ARGV[3] .. mark then
      ttl = math.max(top[2] + window - now, 0) / 1000
    end
  end
  if ttl then redis.call('PEXPIRE', key, ttl - ttl % 2 + 101 + spare) end
end
return {given}
