-- Gives back a reservation if nothing has changed since: then the key gets what it held
-- before, with what is left of that TTL. Otherwise others have reserved behind it and know
-- their instants, and nothing is given back. See reserve.lua.
-- KEYS[1]  the key
-- ARGV     [1] the TTL that the key got and [2] the one that it had, milliseconds; [3] what
--          it held, '' if it did not exist; [4] what it holds since
-- Reply    1 if the permits were given back, else 0
local key, given, kept, before, wrote = KEYS[1], ARGV[1] + 0, ARGV[2] + 0, ARGV[3], ARGV[4]

if redis.call('GET', key) ~= wrote then return 0 end
local left = redis.call('PTTL', key)
if left < 0 then left = given end -- the TTL was lost
local ttl = kept - (given - left)
if before == '' or ttl < 1 then
  redis.call('UNLINK', key)
else
  redis.call('SET', key, before, 'PX', string.format('%d', ttl))
end
return 1
