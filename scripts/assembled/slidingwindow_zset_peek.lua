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
-- stored is how many permits of the window the key holds, recent is the instant of
-- the last one.
-- needs: call key now window
-- sets: edge used stored recent newest repair
local edge = string.format('%d', now - window)
local used = call('ZCOUNT', key, '(' .. edge, '+inf')
if type(used) == 'table' then return used end
local stored, recent, repair = used, 0, false
if used > 0 then
  recent = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2] + 0
  if recent > now then -- the clock stepped back: permits with later instants count from now
    recent = now
    repair = true
  end
end
local newest = recent
-- needs: n times limit used
-- sets: allowed before
local allowed, before = times, used
local room = limit - used
if n * allowed > room then
  allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
end
-- needs: call key n times now limit window used stored allowed
-- sets: wait
local wait = 0
if allowed < times then
  local over, leaves = used + n - limit, now -- so many permits have to leave
  if over <= stored then
    local rank = call('ZCARD', key) - stored + over - 1
    leaves = call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + 0
    if leaves > now then leaves = now end
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
