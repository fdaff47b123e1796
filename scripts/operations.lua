-- Operations on several keys, decided as if made one after the other. The blocks of an
-- algorithm's script replace the marked lines; a block whose name has a question mark is
-- optional. A list of requests only is decided by many.lua, which does the same.
--
-- KEYS   the keys, each once
-- ARGV   [1] unused, then the algorithm's, then for each key its operations, joined by
--        commas; last spare and the caller's clock, if that decides (callersclock.lua):
--          <permits>x<times>          so many equal requests
--          <permits>e<times>          the same, and where the permits are: a ticket
--          <permits>c<times>          charges: taken whether they fit or not, as a debt, which
--                                     is repaid before anybody is allowed again
--          <permits>g<where>/<which>  give back what a ticket stands for
-- Reply  for each key and operation:
--          x, c  the algorithm's words of a run. The first word is the number of requests
--                allowed, or charged: these are the first ones of the run
--          e     the same, and the two words of a ticket of the last request allowed
--          g     the permits given back, rounded up
--        If a key fails, one -1 comes in place of all that was not done: the key is as it
--        was before that (unless the user may not run a command that comes after the
--        first command that writes). The error of a lone operation is replied as an error.
local call = redis.pcall
-- <clock?/>
-- <config/>
local out, size, done = {}, 0, 0

-- A give back writes on its own, so it is loaded on its own; the operations up to the next
-- one are loaded once and stored once.
local function decide(key, operations)
  local begin = 1
  repeat
    local back, where, which, behind = string.match(operations, '^(%d+)g(%d+)/(%d+),?()', begin)
    -- <load/>
    if back then
      back = back + 0
      begin = behind
      -- <giveback/>
      size = size + 1
      out[size] = given
    else
      local change, tickets, from = repair, {}, begin
      repeat
        local permits, kind, calls, stop = string.match(operations, '^(%d+)([xec])(%d+),?()', begin)
        if not kind then -- permits to give back, which is a list of its own
          if begin == from then return {err = 'ERR no operation'} end
          break
        end
        local n, times = permits + 0, calls + 0
        begin = stop
        -- <fit/>
        if kind == 'c' then
          -- <charge/>
        end
        -- <seek?/>
        -- <take/>
        -- <wait?/>
        -- <words/>
        if kind == 'e' then
          tickets[#tickets + 1] = size
          -- <ticket/>
          size = size + 2
        end
        change = change or allowed > 0
      until begin > #operations
      if change then
        -- <store/>
      else
        -- <expire?/>
      end
      -- <seal?/>
    end
    done = size
  until begin > #operations
end

local ahead = #ARGV - #KEYS -- ARGV in front of the operations
-- <shift?/>
if #KEYS == 1 and not string.find(ARGV[ahead + 1], ',', 1, true) then
  return decide(KEYS[1], ARGV[ahead + 1]) or out
end
for i = 1, #KEYS do
  local ok, failed = pcall(decide, KEYS[i], ARGV[ahead + i])
  if not ok or failed then
    for j = done + 2, size do
      out[j] = nil
    end
    size = done + 1
    out[size] = -1
    done = size
  end
end
return out
