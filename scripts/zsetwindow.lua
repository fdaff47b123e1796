-- Sliding window with a member for every permit, scored by the instant of its
-- grant in microseconds.
--
-- ARGV   [2] limit; [3] window, microseconds
-- State  members "<instant>:<number within the instant>"
-- Words  as in log.lua

--- config
local limit, window = ARGV[2] + 0, ARGV[3] + 0
local longest = window

--- load
local edge = string.format('%d', now - window)
local used = call('ZCOUNT', key, '(' .. edge, '+inf')
if type(used) == 'table' then return used end
local stored, newest, stale = used, 0, false
if used > 0 then
  newest = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2] + 0
  if newest > now then -- the clock stepped back: all since is now
    newest = now
    stale = true
  end
end
local recent = newest

--- take
local granted, before, blocked = times, used, 0
local room = limit - used
if n * granted > room then
  granted = math.max((room - room % n) / n, 0)
end
used = used + granted * n
if granted > 0 then newest = now end
if granted < times then
  local over, leaves = used + n - limit, now -- permits that have to leave
  if over <= stored then
    local rank = call('ZCARD', key) - stored + over - 1
    leaves = call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + 0
    if leaves > now then leaves = now end
  end
  blocked = leaves + window - now
end

--- store
local at = string.format('%d', now)
if stale then
  local later = redis.call('ZRANGEBYSCORE', key, '(' .. at, '+inf')
  for i = 1, #later do
    redis.call('ZADD', key, at, later[i])
  end
end
local missing, number = used - stored, 0
if recent == now then number = redis.call('ZCOUNT', key, at, at) end
while missing > 0 do -- again where a stepped clock left such a member
  local members = {}
  for i = 1, math.min(missing, 1000) do
    number = number + 1
    members[2 * i - 1] = at
    members[2 * i] = at .. ':' .. number
  end
  missing = missing - redis.call('ZADD', key, 'NX', unpack(members))
end
redis.call('ZREMRANGEBYSCORE', key, '-inf', edge)
local ttl = window / 1000
redis.call('PEXPIRE', key, ttl - ttl % 2 + 101)
