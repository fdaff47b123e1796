-- A log under one rule, in a list: the sliding window in sub-windows, with the
-- storage List, and the sliding log of a single rule.
--
-- An entry of the log is an instant and the permits taken up to it since the log
-- began, so that one subtraction gives the permits of any span. Entry 0 is the last
-- entry that has left the window; only its total is needed.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] the limiter's rule, see State; [3] resolution, microseconds:
--          permits of one slot share an entry, dated at the last instant of the slot;
--          [4] limit; [5] window, microseconds; last spare and the caller's clock, if
--          that decides (callersclock.lua)
-- State    rule, total, instant, total, instant, total, …: entry i is at 2i and 2i + 1,
--          and takes about 14 bytes in a node of the list. The rule stands in place of
--          the instant of entry 0
-- Rule     "<longest window>/<resolution>", and "@" if a caller's clock wrote the last
--          entry. " <window>/<instant>" follows for every longer window of another
--          limiter that uses the key: its entries are kept until that instant, when
--          the last permit that it took leaves its window. Then "~<instant>/<id>", if slices were
--          taken: until when they may be spent, and of which of them permits come back
--          (slice); or "~<era>/0<era>": the server's clock stepped back, instants before that
--          number are used again, and tickets of these have it (rewind, ticket). With slices
--          it is "~<instant>/0<era>". "!" at the end: all permits of the last entry were given
--          back. The limiter's own rule is in ARGV, so that one comparison says that nobody
--          else uses the key
-- Reply    the words of a run
-- Words    requests allowed; microseconds from now to the last instant at which a
--          permit was taken, this run's included; microseconds until the first denied
--          request fits; permits used before the run
local key, n, times = KEYS[1], ARGV[1] + 0, 1
local call = redis.pcall
local budget = 0 -- of an execution for many requests, see many.lua

-- <clock>
-- needs:
-- sets: now mark spare
local time = redis.call('TIME')
local now, mark, spare = time[1] * 1000000 + time[2], '', 0
-- </clock>

-- <config>
-- needs:
-- sets: rule grain limit window longest corrupt
local rule, grain, limit, window = ARGV[2], ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local longest = window
local corrupt = 'CORRUPT no state of a log in a list'
-- </config>

-- <load>
-- Reads what this decision needs of the log. The blocks after it use:
--   present         the instant at which the call is decided: now, unless it has to be later
--   slot            last instant of the present slot, at which permits taken now are dated
--   total, used     permits taken since the log began; those that count now
--   stored, recent  total and instant of the last entry before this execution; a clock that
--                   stepped back dates it at slot or earlier
--   newest          last instant at which a permit was taken, this execution's included
--   last            number of the last entry, nil unless it was needed
--   exists, renew   there is a log to go on with; there is one that has to be deleted
--   repair, kept    the clock stepped back: the entries after number kept have to go
--   forget          number of the entry that becomes entry 0
--   text            the rule that an allowed call writes; said is the stored one
--   era             0, or the clock has stepped back: instants up to this one are used again
--   gone, others    the instants at which the state is no longer needed, and at which
--                   nobody else needs it
--   left, under     the last entry that has left the window: its number, its total
--   alive           the instant of the entry after it
-- needs: budget call corrupt grain key longest mark now rule spare window
-- sets: alive base budget era exists forget gone instant kept last left newest others present recent renew repair said slack slot stored text total under used

-- <open/>

local present, slot = now, now - now % grain + grain - 1
local text, held, gone, others, newest, slack = rule, longest, instant + longest, 0, instant, spare
local last
local era = 0
local renew, kept, repair, forget = false, 0, false, 0
-- Others have used the key, or the clock is behind.
if said ~= rule or instant > slot then
  -- <writer/>
  -- <rewind/>
  -- <others/>
end
if exists and gone <= present then -- the state is no longer needed
  renew = true
  exists = false
  said = text
  instant = 0
  total = 0
  base = 0
  newest = 0
end
local left, under, alive = 0, base, oldest
if exists and alive <= present - window then -- more entries have left the window, often just one
  local edge, from, upto = present - held, 0, base
  while true do -- first under the longest window that anybody needs, then under this one
    if instant <= edge then
      upto = total
    elseif alive <= edge then
      local guess, width = from + 1, 2
      -- <search/>
    end
    if edge == present - held then
      forget = from
      base = upto
    end
    if edge == present - window then break end
    edge = present - window
  end
  left = from
  under = upto
end
local used, stored, recent = total - under, total, instant
if not (used >= 0 and gone < 2 ^ 53) then return {err = corrupt} end -- "not", because it may be NaN
-- </load>

-- <fit>
-- needs: n times limit used
-- sets: allowed before room
local allowed, before = times, used
local room = limit - used
if n * allowed > room then
  allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
end
-- </fit>

-- <seek>
-- Computes when the entry leaves the window that makes room. It is an entry of this
-- execution if the stored ones are not enough.
-- needs: alive allowed budget call corrupt gone key last left limit n now recent slot stored times under used window
-- sets: budget wait
local wait = 0
if allowed < times then
  local over, leaves = used + (allowed + 1) * n - limit, slot -- so many permits have to leave
  if under + over <= stored then
    leaves = alive
    if over > 1 then
      local below, belowSum, goal = left, under, under + over
      -- <reach/>
    end
  end
  wait = leaves + window
  if allowed == 0 and wait > gone then wait = gone end
  wait = wait - now
end
-- </seek>

-- <take>
-- needs: n longest slot used total allowed others newest gone
-- sets: used total newest gone
used = used + allowed * n
total = total + allowed * n
if allowed > 0 then
  newest = slot
  gone = slot + longest
  if others > gone then gone = others end
end
-- </take>

if allowed > 0 or repair then
  -- <store/>
else
  -- <expire/>
end

-- <answer>
-- needs: now newest allowed before wait
-- sets:
return {allowed, newest - now, wait, before}
-- </answer>

--[[ In place of the answer when a run of requests is decided:
-- <words>
-- needs: out size now newest allowed before wait
-- sets: size
out[size + 1] = allowed
out[size + 2] = newest - now
out[size + 3] = wait
out[size + 4] = before
size = size + 4
-- </words>
-- <charge>
-- After fit: as many requests as the debt has room for.
-- needs: allowed n room times used
-- sets: allowed
room = 4e12 - used
allowed = times
if n * allowed > room then allowed = math.max((room - room % n) / n, 0) end
-- </charge>

-- <lease>
-- A slice: how many of the requests it gets (times), and how long it lasts (long).
-- needs: least limit long present slot times used
-- sets: long times
local fits = math.max(limit - used, 0)
-- <span/>
-- </lease>

-- <slice/>

-- <ticket/>

-- <giveback/>
]]
