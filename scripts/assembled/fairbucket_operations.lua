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
-- Reply  for each key and operation:
--          x, c  the algorithm's words of a run. The first word is the number of requests
--                allowed, or charged: these are the first ones of the run
--          e     the same, and the two words of a ticket of the last request allowed
--          g     the permits given back, rounded up
--        If a key fails, one -1 comes in place of all that was not done: the key is as it
--        was before that (unless the user may not run a command that comes after the
--        first command that writes). Of an operation on its own, which has a script
--        without the function and the loops around it, the error is the reply.
local call = redis.pcall
-- <limits>
-- needs:
-- sets:
local limits, tenants, states = {}, {}, {}
for i = 1, #KEYS / 2 do
  local tenant = KEYS[i]
  tenants[i] = tenant
  limits[tenant] = KEYS[#KEYS / 2 + i]
end
local KEYS = tenants
-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- <config>
-- needs:
-- sets: capacity permit flow rule weight keep open epoch
local capacity, permit, flow, rule = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5]
local weight, keep, open, epoch = ARGV[6] + 0, ARGV[7] + 0, ARGV[8] + 0, ARGV[9] + 0
local out, size = {}, 0
local done = 0

-- A give back writes on its own, so it is loaded on its own, and so are reservations and cancels;
-- the operations up to the next such one are loaded once and stored once.
local function decide(key, operations)
  local begin = 1
  local permits, kind, amount, which, stop = string.match(operations, '^(%d+)(%a)(%d*)/?(%d*),?()')
  repeat
    if not kind then return {err = 'ERR no operation'} end
    local back = kind == 'g' and permits + 0
    -- <load>
    -- The blocks after it use:
    --   present  the instant that decides: now, or the state's if a caller's clock is ahead
    --   missing  units missing at present
    --   lag      how far now is behind present
    --   repair   the clock stepped back: the state's instant becomes now
    --   writes   the rule as the store writes it
    --   margin   what the TTLs are longer by, milliseconds
    --   counted  the tenant's weight as it is counted, 0 if it is not
    --   current  it is counted in this epoch
    --   had      its mark
    --   took     the state has changed
    -- needs: call flow key limits mark now permit rule spare states
    -- sets: began by counted counts current gap had lag left limit line margin missing most owed present repair shift state stored took writes
    local limit = limits[key]
    local present, missing, lag, repair, writes, margin, took = now, 0, 0, false, rule, spare, false
    local began, gap, counts, left, line, shift, most, owed = now, 0, 0, 0, 0, 0, 0, 0
    local counted, current, had, stored = 0, false, 0, 0
    local state, by, at = states[limit] -- of a request before, which has not been written yet
    if state then
      began = state.began
      gap = state.gap
      counts = state.counts
      left = state.left
      line = state.line
      shift = state.shift
      most = state.most
      owed = state.owed
      at = state.at
      missing = state.missing
      by = state.by
    else
      state = call('GET', limit)
      if state then
        if state.err then return state end
        began, gap, counts, left, line, shift, most, owed, at, missing, by = string.match(state,
          '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+);(%d+)/(%d+)(/[^;]*)$')
        if not by then return {err = 'CORRUPT no state of a fair token bucket'} end
        began = began + 0
        gap = gap + 0
        counts = counts + 0
        left = left + 0
        line = line + 0
        shift = shift + 0
        most = most + 0
        owed = owed + 0
        at = at + 0
        missing = missing + 0
        if began + gap + counts + left + line + shift + most + owed >= 2 ^ 53 or at + missing >= 2 ^ 53 then
          return {err = 'CORRUPT no state of a fair token bucket'}
        end
      end
    end
    if state then
      local kind = mark
      stored = missing
      if by ~= rule then -- until a call is allowed it goes on by the faster of that rule and this one
        local unit, speed, clock = string.match(by, '^/([1-9]%d*)/([1-9]%d*)(@?%d*)$')
        if not unit or #unit > 15 or #speed > 15 then return {err = 'CORRUPT no state of a fair token bucket'} end
        kind = mark .. clock
        if mark == '' and clock ~= '' then -- callers whose clocks are behind use the limit too
          writes = rule .. clock
          margin = math.min(tonumber(string.sub(clock, 2)) or 1000, 86400000)
        end
        if flow * unit < speed * permit then missing = math.max(missing - math.max(now - at, 0) * speed, 0) end
        local part = missing % unit
        missing = (missing - part) / unit * permit
        if part > 0 then missing = missing + math.ceil(part / unit * permit) end
        missing = math.min(missing, 2 ^ 52)
        if flow * unit < speed * permit and at < now then at = now end
      end
      if at > now then
        if kind == '' then
          repair = true
        else
          lag = at - now
          present = at
        end
      else
        missing = math.max(missing - (now - at) * flow, 0)
      end
      local own = call('GET', key)
      if own then
        if own.err then return own end
        local since, mine, of = string.match(own, '^(%d+),(-?%d+),([1-9]%d*)$')
        if not of or since + math.abs(mine) + of >= 2 ^ 53 then return {err = 'CORRUPT no state of a tenant'} end
        current = since + 0 == began
        if current or gap > 0 and since + 0 == began - gap then
          counted = of + 0
          had = mine + 0
          if not current then had = had - shift end
        end
      end
    end
    if back then
      local where = amount
      -- <giveback>
      -- To the limit and to the tenant's share. While the state is another rule's, nothing comes back.
      -- needs: back by counted counts current had left missing owed permit repair rule state took weight
      -- sets: counts given had left missing owed repair took
      local given = 0
      if state and missing > 0 and by == rule then
        given = math.min(back, math.ceil(missing / permit))
        missing = math.max(missing - back * permit, 0)
        repair = false
        if counted > 0 then
          took = true
          had = had - math.floor(back * 1000000 / weight)
          owed = owed + back * 1000000
          if not current then
            counts = counts + counted
            left = math.max(left - counted, 0)
          end
        end
        -- <store>
          -- needs: began by counted counts epoch flow gap had key left limit line margin missing most owed present repair shift states stored took writes
          -- sets:
          local ttl = 3 * epoch / 1000 + margin
          if took then -- the TTLs are odd, see bucket.lua
            redis.call('SET', key, string.format('%d,%d,%d', began, had, counted), 'PX', ttl - ttl % 2 + 3)
          end
          ttl = missing / flow / 1000 + 2 * epoch / 1000 + margin
          states[limit] = {
            began = began, gap = gap, counts = counts, left = left, line = line, shift = shift, most = most, owed = owed,
            at = present, missing = missing, by = writes, ttl = ttl - ttl % 2 + 3,
          }
          if repair and not took then
            local entry = states[limit]
            entry.missing = stored
            entry.by = by
          end
      end
      size = size + 1
      out[size] = given
    else
      local change = repair
      repeat
        local n, times = permits + 0, amount + 0
        -- <fit>
        -- needs: capacity counted counts had keep left line missing most n open owed permit times weight
        -- sets: allowed before behind charged cost fresh kept later reach welcome
        local grains, cost = n * 1000000, math.ceil(n * 1000000 / weight)
        local others = counts + left - math.min(weight, counted)
        local share = math.floor(keep / (others + weight))
        local kept, reach, behind, fresh, welcome = share * others, math.max(share, 2 * most), 0, -1, false
        if counted > 0 then
          behind = math.min(line - had, reach)
          if weight > counted and behind > 0 then behind = math.floor(behind * counted / weight) end
        elseif others > 0 then
          fresh = math.min(owed, kept)
          welcome = cost <= reach
        end
        local allowed, before, charged, later = 0, missing, false, kept
        local room = capacity - missing
        local rest = room % permit
        local level = (room - rest) / permit * 1000000 + math.floor(rest * 1000000 / permit)
        if cost <= behind then allowed = math.max(math.min(times, math.floor(behind / cost), math.floor(level / grains)), 0) end
        if welcome and (level - grains >= fresh or missing <= 0) then allowed = 1 end
        if allowed < times and (allowed + 1) * cost > behind and (allowed == 1 or not welcome) then
          local further = math.floor((level - allowed * grains - kept - open) / grains)
          if allowed == 0 and missing <= 0 then further = math.max(further, 1) end
          allowed = math.min(times, allowed + math.max(further, 0))
        end
        if kind == 'c' then
          -- <charge>
          -- After fit: as many requests as the debt has room for. A charge counts against the share, and moves
          -- no line: those who are behind it have not had more.
          -- needs: allowed behind charged cost flow line missing n permit times
          -- sets: allowed charged
          local room = math.min(2 ^ 52 - 1, 2 ^ 51 * flow, 1e9 * permit) - missing
          allowed = math.max(math.min(times, math.floor(room / (n * permit)), math.floor((2 ^ 50 - line + behind) / cost)), 0)
          charged = true
        end
        -- <take>
        -- An epoch ends only with a call that moves the line: that leaves as much as is kept, and so as
        -- much as those can take for whom more is kept when others count no longer.
        -- needs: allowed began behind charged cost counted counts current epoch fresh gap had keep kept later left line missing most n owed permit present reach repair shift took weight welcome
        -- sets: began counted counts current gap had later left line missing most owed repair shift took
        if allowed > 0 then
          missing = missing + allowed * n * permit
          repair = false
          took = true
          local was = counted
          counted = weight
          if was == 0 then
            counts = counts + weight
          elseif current then -- within an epoch no weight is lowered
            counted = math.max(weight, was)
            counts = counts + counted - was
          else
            counts = counts + weight
            left = math.max(left - math.min(weight, was), 0)
          end
          current = true
          had = line - behind
          if fresh >= 0 then owed = fresh end
          owed = math.min(owed, kept)
          local moves = allowed
          if charged then
            moves = 0
            had = had + allowed * cost
          elseif welcome then
            moves = allowed - 1
          elseif fresh >= 0 then
            had = had - reach
          elseif cost <= behind then
            local free = math.min(allowed, math.floor(behind / cost))
            moves = allowed - free
            had = had + free * cost
            owed = math.max(owed - free * cost * weight, 0)
          end
          if moves > 0 then
            had = had + moves * cost
            line = math.max(had, line)
            most = math.max(cost, most)
            owed = kept
            local age = present - began
            if age >= epoch or age < 0 then
              left = counts - counted
              counts = counted
              gap = age
              if age < 0 or age >= 2 * epoch then
                left = 0
                gap = 0
              end
              began = present
              shift = line
              most = math.max(math.floor(most / 2), cost)
              had = had - line
              line = 0
              local besides = counts + left - math.min(weight, counted)
              later = math.floor(keep / (besides + weight)) * besides
            end
          end
        end
        -- <words>
        -- needs: allowed before behind fresh kept lag later out reach size
        -- sets: size
        out[size + 1] = allowed
        out[size + 2] = before
        out[size + 3] = lag
        out[size + 4] = behind
        out[size + 5] = kept
        out[size + 6] = fresh
        out[size + 7] = reach
        out[size + 8] = later
        size = size + 8
        if kind == 'e' then
          -- <ticket>
          -- needs: out size present
          -- sets:
          out[size + 1] = present
          out[size + 2] = 0
          size = size + 2
        end
        change = change or allowed > 0
        begin = stop
        permits, kind, amount, stop = string.match(operations, '^(%d+)([xec])(%d+),?()', begin)
      until not kind
      if change then
        -- <store>
          -- needs: began by counted counts epoch flow gap had key left limit line margin missing most owed present repair shift states stored took writes
          -- sets:
          local ttl = 3 * epoch / 1000 + margin
          if took then -- the TTLs are odd, see bucket.lua
            redis.call('SET', key, string.format('%d,%d,%d', began, had, counted), 'PX', ttl - ttl % 2 + 3)
          end
          ttl = missing / flow / 1000 + 2 * epoch / 1000 + margin
          states[limit] = {
            began = began, gap = gap, counts = counts, left = left, line = line, shift = shift, most = most, owed = owed,
            at = present, missing = missing, by = writes, ttl = ttl - ttl % 2 + 3,
          }
          if repair and not took then
            local entry = states[limit]
            entry.missing = stored
            entry.by = by
          end
      else
        -- <expire>
          -- A limit that has lost its TTL gets one, see bucket.lua.
          -- needs: call epoch flow limit margin missing now
          -- sets:
          if now % 16 == 0 and call('PTTL', limit) == -1 then
            local ttl = missing / flow / 1000 + 2 * epoch / 1000 + margin
            redis.call('PEXPIRE', limit, ttl - ttl % 2 + 3)
          end
      end
      stop = begin
    end
    done = size
    begin = stop
    if begin <= #operations then
      permits, kind, amount, which, stop = string.match(operations, '^(%d+)(%a)(%d*)/?(%d*),?()', begin)
    end
  until begin > #operations
end

local ahead = #ARGV - #KEYS -- ARGV in front of the operations
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
-- <flush>
  -- Writes each limit once.
  -- needs: states
  -- sets:
  for name, s in pairs(states) do
    redis.call('SET', name, string.format('%d,%d,%d,%d,%d,%d,%d,%d;%d/%d%s', s.began, s.gap, s.counts, s.left, s.line,
      s.shift, s.most, s.owed, s.at, s.missing, s.by), 'PX', s.ttl)
  end
return out
