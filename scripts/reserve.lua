-- Reserves permits of a bucket: takes them even if they do not fit yet, if they fit soon
-- enough. The caller may use them when they are due.
-- KEYS and ARGV are those of the algorithm's script, whose blocks replace the marked lines.
-- After the algorithm's comes the longest wait, microseconds. A state that promises permits
-- says until when, so that no other rule repays the debt at its own rate (inherit).
-- Reply  when the permits are due, microseconds from now; the words of a run of one
--        request; and if the permits were taken, for cancel.lua: the TTL that the key got and
--        the one that it had, milliseconds, what it held, and what it holds
local key, n, times = KEYS[1], ARGV[1], 1
local call = redis.pcall
local ahead = #ARGV
-- <shift?/>
local longest = ARGV[ahead] + 0
-- <clock?/>
-- <config/>
local out, size = {}, 1
-- <load/>
-- <fit/>
-- <due/>
out[1] = due
if due <= longest then allowed = 1 end
-- <take/>
-- <wait?/>
-- <words/>
if allowed > 0 or repair then
  if allowed > 0 and due > 0 then
    local promise = now + due - stamp
    local plain, earlier = string.match(writes, '^(.*)!(%d+)$')
    if plain then
      writes = plain
      promise = math.max(promise, earlier + 0)
    end
    writes = writes .. string.format('!%d', promise)
  end
  local kept = call('PTTL', key)
  -- <store/>
  if allowed > 0 then
    local given = ttl - ttl % 2 + 3
    if type(kept) ~= 'number' or kept == -1 then kept = given end -- the user may not ask, or the TTL was lost
    out[size + 1] = given
    out[size + 2] = kept
    out[size + 3] = state or ''
    out[size + 4] = value
  end
else
  -- <expire?/>
end
return out
