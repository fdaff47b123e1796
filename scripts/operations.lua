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
--          <permits>g<where>/<which>  give back what a ticket stands for; a credit has no <where>
-- <if slice>
--          <most>d<waiting>/<shortest>/<longest>/<id>
--                                     a slice: up to so many permits, and at least those that callers wait
--                                     for, to be spent within so many microseconds, of a bucket as many as
--                                     cost nothing (lease). The id is for those that may come back (mark)
-- </if slice>
-- <if receipt>
--          <permits>s<longest>        buckets: a reservation. Permits that do not fit yet are taken
--                                     too, if they fit within so many microseconds. A state that
--                                     promises permits says until when, so that no other rule
--                                     repays the debt at its own rate (inherit)
--          1z<wrote>|<before>         buckets: cancel a reservation, if the key still holds what that
--                                     wrote: then it gets what it held before, '' for nothing.
--                                     Otherwise others have reserved behind it and know their
--                                     instants, and the cancel waits for theirs (cancel)
-- </if receipt>
-- <if tickets>
--          <permits>a<how>/<lease>/<id>
--                                     an estimate whose permits come back when its lease, in
--                                     microseconds, has ended (tickets.lua)
--          <permits>m<how>/<ticket>   this ticket takes so many more
--          <actual>u<how>/<ticket>    it is settled
--          1w<how>/<ticket>           its lease begins again
-- </if tickets>
-- <if pause>
--          1p<length>                 a pause of so many microseconds from now, if that is later
--                                     than the one that there is
--          1f                         a call has succeeded: if the pause is over, all others follow
--          1t<wait>/<quiet><steps>    a strike, unless the episode of the last one goes on: a pause
--                                     of the k-th of the steps, ":<length>:<length>…". The episode is
--                                     over after that, and after the wait; strikes are forgotten
--                                     when it is over for so long
-- </if pause>
-- Reply  for each key and operation:
--          x, c  the algorithm's words of a run. The first word is the number of requests
--                allowed, or charged: these are the first ones of the run
--          e     the same, and the two words of a ticket of the last request allowed
--          g     the permits given back, rounded up
-- <if slice>
--          d     the microseconds within which the permits may be spent, 0 for at once; the words
--                of a run of as many requests for one permit; the two words of a ticket
-- </if slice>
-- <if receipt>
--          s     when the permits are due, microseconds from now; the words of a run of one
--                request; how many numbers follow, and these: none if nothing was taken; otherwise
--                4 of what the key holds (see receipt), and 8 of what it held, if anything
--          z     1 if the reservation was cancelled, 0 if not, or not yet
-- </if receipt>
-- <if tickets>
--          a     as e; the last word is -1 if there are too many tickets
--          m     1, and then as e; or 0 if the ticket has been given back, and nothing was taken
--          u     1, and the permits given back; 2, and the words of a charge of what was missing; 4 if
--                nothing was; or, if the ticket had been given back, 0, and the words of a charge of all; 3
--                if nothing was used
--          w     1, or 0 if it has been given back
-- </if tickets>
-- <if pause>
--          p, f, t  the words of a look behind it
-- </if pause>
--        If a key fails, one -1 comes in place of all that was not done: the key is as it
--        was before that (unless the user may not run a command that comes after the
--        first command that writes). Of an operation on its own, which has a script
--        without the function and the loops around it, the error is the reply.
-- <if seek>
--        One -2 comes in place of what was not done because there was no time left, see many.lua.
-- </if seek>
local call = redis.pcall
-- <limits?/>
-- <if seek>
local budget, late = 500, {}
-- </if seek>
-- <clock?/>
-- <config?/>
local out, size = {}, 0
-- <unless alone>
local done = 0
-- </unless alone>

-- A give back writes on its own, so it is loaded on its own, and so are reservations and cancels;
-- the operations up to the next such one are loaded once and stored once.
-- <if alone>
local ahead = #ARGV - 1
-- <shift?/>
local key, operations = KEYS[1], ARGV[ahead + 1]
do
-- </if alone>
-- <unless alone>
-- <unless own>
local function decide(key, operations)
-- </unless own>
-- <if own>
local function decide(key, operations, front)
  -- <own/>
-- </if own>
-- </unless alone>
  local begin = 1
  local permits, kind, amount, which, stop = string.match(operations, '^(%d+)(%a)(%d*)/?(%d*),?()')
  repeat
    -- <unless alone>
    -- <if seek>
    if budget < 0 then return late end
    -- </if seek>
    -- </unless alone>
    if not kind then return {err = 'ERR no operation'} end
    local back = kind == 'g' and permits + 0
    -- <if receipt>
    local call = call
    local wrote, before, behind, gets, undone, waiting
    if kind == 'z' then
      wrote, before, behind = string.match(operations, '^1z([^|]*)|([^,]*),?()', begin)
      local held = call('GET', key)
      if held and held.err then return held end
      -- <cancel/>
      call = function() -- load reads what the key gets
        return gets and gets ~= '' and gets
      end
    end
    -- </if receipt>
    -- <tickets?/>
    -- <load/>
    if back then
      local where = amount
      -- <giveback/>
      size = size + 1
      out[size] = given
    -- <if slice>
    elseif kind == 'd' then
      local least, shortest, long, id, further = string.match(operations, '^%d+d(%d+)/(%d+)/(%d+)/(%d+),?()', begin)
      local n, times = 1, permits + 0
      least = least + 0
      long = long + 0
      stop = further
      -- <lease/>
      local some = times > 0
      if not some then times = 1 end
      -- <fit/>
      if not some then allowed = 0 end
      -- <seek?/>
      -- <take/>
      -- <wait?/>
      size = size + 1
      out[size] = allowed > 0 and long or 0
      -- <words/>
      -- <slice/>
      size = size + 2
      if allowed > 0 or repair then
        -- <store/>
        -- <if seal>
        local tickets = {size - 2}
        -- <seal/>
        -- </if seal>
      else
        -- <expire?/>
      end
    -- </if slice>
    -- <if receipt>
    elseif kind == 's' then
      local n, times = permits + 0, 1
      -- <fit/>
      -- <due/>
      size = size + 1
      out[size] = due
      if due <= amount + 0 then allowed = 1 end
      -- <take/>
      -- <wait?/>
      -- <words/>
      size = size + 1
      if allowed > 0 then
        local promise = due > 0 and now + due - stamp or 0
        if writes ~= rule then
          local plain, promised = string.match(writes, '^(.*)!(%d+)$')
          writes = plain or writes
          promise = math.max(promised or 0, promise)
        end
        if promise > 0 then
          -- <waiting/>
          writes = writes .. string.format('!%d', promise) .. waiting
        end
        -- <store/>
        out[size] = 4
        -- <receipt/>
      else
        if repair then
          -- <store/>
        else
          -- <expire/>
        end
        out[size] = 0
      end
    elseif wrote then
      stop = behind
      if gets then
        -- <remains/>
        if state and remains > 0 then
          redis.call('SET', key, state .. waiting, 'PX', remains - remains % 2 + 3)
        else
          redis.call('UNLINK', key)
        end
      end
      size = size + 1
      out[size] = undone and 1 or 0
    -- </if receipt>
    -- <if tickets>
    elseif kind == 'a' or kind == 'm' then
      local n, times = permits + 0, 1
      -- <fit/>
      -- <full/>
      -- <seek?/>
      -- <take/>
      -- <wait?/>
      -- <words/>
      -- <ticket/>
      -- <begin/>
      size = size + 2
      if allowed > 0 or repair then
        -- <store/>
      else
        -- <expire?/>
      end
    elseif kind == 'n' then
      begin = stop -- nothing is left to do
    -- </if tickets>
    -- <if pause>
    elseif kind == 'p' or kind == 'f' or kind == 't' then
      local times, steps = 1, ''
      if kind == 't' then
        local rest, further = string.match(operations, '^%d+t%d+/%d+([:%d]*),?()', begin)
        steps = rest
        stop = further
      end
      -- <pause/>
      -- <fit/>
      -- <words/>
      -- <store/>
    -- </if pause>
    else
      local change = repair
      -- <if seal>
      local tickets = {}
      -- </if seal>
      repeat
        local n, times = permits + 0, amount + 0
        -- <fit/>
        if kind == 'c' then
          -- <charge/>
        end
        -- <seek?/>
        -- <take/>
        -- <wait?/>
        -- <words/>
        if kind == 'e' then
          -- <if seal>
          tickets[#tickets + 1] = size
          -- </if seal>
          -- <ticket/>
          size = size + 2
        end
        change = change or allowed > 0
        begin = stop
        permits, kind, amount, stop = string.match(operations, '^(%d+)([xec])(%d+),?()', begin)
      until not kind
      if change then
        -- <store/>
      else
        -- <expire?/>
      end
      -- <seal?/>
      stop = begin
    end
    -- <unless alone>
    done = size
    -- </unless alone>
    begin = stop
    if begin <= #operations then
      permits, kind, amount, which, stop = string.match(operations, '^(%d+)(%a)(%d*)/?(%d*),?()', begin)
    end
  until begin > #operations
end
-- <unless alone>

local ahead = #ARGV - #KEYS -- ARGV in front of the operations
-- <shift?/>
for i = 1, #KEYS do
  -- <unless own>
  local ok, failed = pcall(decide, KEYS[i], ARGV[ahead + i])
  -- </unless own>
  -- <if own>
  local ok, failed = pcall(decide, KEYS[i], ARGV[ahead + i], ARGV[ahead - #KEYS + i] + 0)
  -- </if own>
  if not ok or failed then
    for j = done + 2, size do
      out[j] = nil
    end
    size = done + 1
    out[size] = -1
    -- <if seek>
    if failed == late then out[size] = -2 end
    -- </if seek>
    done = size
  end
end
-- </unless alone>
-- <flush?/>
return out
