-- Begins the lease of a hold again, if Redis still has all its permits.
--
-- KEYS[1]  the key
-- ARGV     those of inflight.lua
-- State    that of inflight.lua
-- Reply    1, or 0 if the lease is lost
local key, n = KEYS[1], ARGV[1] + 0

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

local lease, name = ARGV[3] + 0, '/' .. ARGV[5] .. ARGV[4]
local score, ttl = now + lease + spare * 1000, lease / 1000 + spare
for i = 1, n do
  local held = redis.pcall('ZSCORE', key, i .. name)
  if not held then return {0} end
  if type(held) == 'table' then return held end -- an error
  -- Calls of a caller's clock arrive in any order: no lease ends earlier than a holder believes.
  if mark == '@' then score = math.max(score, held + 0) end
end
local left = redis.call('PTTL', key)
local members = {}
for i = 1, n do
  members[2 * i - 1] = string.format('%d', score)
  members[2 * i] = i .. name
end
redis.call('ZADD', key, unpack(members))
-- The TTL is that of inflight.lua. If it was lost, or may be too long, it is for the lease that ends last.
local other = left == -1
if other or left > ttl + 952 then
  local last = redis.call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
  ttl = math.max(ttl, math.min((last[2] - now) / 1000, 2 ^ 41) + spare)
  other = other or left > ttl + 952
end
if other or left < ttl + 1 then redis.call('PEXPIRE', key, ttl - ttl % 2 + 951) end
return {1}
