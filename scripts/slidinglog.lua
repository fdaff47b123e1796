-- A log under several rules, in a list: the sliding log. (slidingwindow_list.lua
-- decides the sliding log of a single rule, on the same state.)
--
-- An entry of the log is an instant and the permits taken up to it since the log
-- began, so that one subtraction gives the permits of any span. Entry 0 is the last
-- entry that has left every window; only its total is needed.
--
-- KEYS[1]  the key
-- ARGV     [1] permits; [2] the limiter's rule, see State; [3] resolution, microseconds:
--          permits of one slot share an entry, dated at the last instant of the slot;
--          [4] number of rules; then limit and window (microseconds) of each, from the
--          smallest window up; last spare and the caller's clock, if that decides
--          (callersclock.lua)
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
--          request fits; for each rule the permits used before the run; the number of
--          the rule that blocks longest, from 1, or 0
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
-- sets: rule grain rules limits windows longest corrupt
local rule, grain, rules = ARGV[2], ARGV[3] + 0, ARGV[4] + 0
-- These tables begin with room for four rules: to grow one costs a third of a call.
local limits, windows = {0, 0, 0, 0}, {0, 0, 0, 0}
for r = 1, rules do
  limits[r] = ARGV[3 + 2 * r] + 0
  windows[r] = ARGV[4 + 2 * r] + 0
end
local longest = windows[rules]
local corrupt = 'CORRUPT no state of a log in a list'
-- </config>

-- <load>
-- Reads what this decision needs of the log. The blocks after it use:
--   present         the instant at which the call is decided: now, unless it has to be later
--   slot            last instant of the present slot, at which permits taken now are dated
--   total           permits taken since the log began
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
-- needs: budget call corrupt grain key limits longest mark now rule rules spare windows
-- sets: alives base bases budget era exists forget gone instant kept last left newest others present recent renew repair said slack slot stored text total

-- <open/>

local present, slot = now, now - now % grain + grain - 1
local text, held, gone, others, newest, slack = rule, longest, instant + longest, 0, instant, spare
local last
local era = 0
local renew, kept, repair = false, 0, false
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
-- Unless an entry has left the smallest window, the numbers of entries are not needed.
if exists and not last and oldest <= present - windows[1] then
  local length = call('LLEN', key)
  if length < 4 or length % 2 == 1 then return {err = corrupt} end
  last = length / 2 - 1
end

-- For each rule: the last entry that has left its window (left), the total up to that
-- entry (bases), and the instant of the entry after it (alives). The smaller the
-- window, the more entries have left it. What others need comes before the longest rule.
local left, bases, alives = {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}
local from, upto, alive = 0, base, oldest
local most, forget = rules
if held > longest then
  most = rules + 1
  windows[most] = held
end
for r = most, 1, -1 do
  local edge = present - windows[r]
  if instant <= edge then -- all entries have left this window
    from = last or 0
    upto = total
  elseif alive <= edge then
    -- Usually just one more entry has left the longest window. For the other rules the
    -- guess is that all permits of the rule are taken, one in each entry: then as many
    -- entries as its limit are in its window, or one fewer just before a call is allowed.
    local guess, width = from + 1, 2
    if r < rules then
      guess = last - limits[r]
      width = 4
      if guess <= from then
        guess = from + 1 + math.floor((last - from - 1) * (edge - alive) / (instant - alive))
      end
    end
    -- <search/>
  end
  if not forget then
    forget = from
    base = upto
  end
  left[r] = from
  bases[r] = upto
  alives[r] = alive
  if not (total >= upto) then return {err = corrupt} end -- "not", because it may be NaN
end
if gone >= 2 ^ 53 then return {err = corrupt} end
local stored, recent = total, instant
-- </load>

-- <fit>
-- needs: n times rules limits total bases
-- sets: allowed before
local allowed, before = times, total
for r = 1, rules do
  local room = limits[r] + bases[r] - total
  if n * allowed > room then
    allowed = math.max((room - room % n) / n, 0) -- room is below 0 if the limit was lowered
  end
end
-- </fit>

-- <seek>
-- Computes, for each rule that blocks the first denied request, when the entry leaves its
-- window that makes room. It is an entry of this execution if the stored ones are not
-- enough.
-- needs: alives allowed bases budget call corrupt gone key last left limits n now recent rules slot stored times total windows
-- sets: blocking budget wait
local wait, blocking = 0, 0
if allowed < times then
  for r = 1, rules do
    local over = total - bases[r] + (allowed + 1) * n - limits[r] -- so many permits have to leave
    if over > 0 then
      local leaves = slot
      if bases[r] + over <= stored then
        leaves = alives[r]
        if over > 1 then
          local below, belowSum, goal = left[r], bases[r], bases[r] + over
          -- <reach/>
        end
      end
      local blocked = leaves + windows[r]
      if allowed == 0 and blocked > gone then blocked = gone end
      blocked = blocked - now
      if blocked > wait then
        wait = blocked
        blocking = r
      end
    end
  end
end
-- </seek>

-- <take>
-- needs: n longest slot total allowed others newest gone
-- sets: total newest gone
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
-- needs: now rules bases newest allowed before wait blocking
-- sets: out size
local out, size = {0, 0, 0, 0, 0, 0}, 0 -- two rules give six words
-- <words>
-- needs: out size now rules bases newest allowed before wait blocking
-- sets: size
out[size + 1] = allowed
out[size + 2] = newest - now
out[size + 3] = wait
for r = 1, rules do
  out[size + 3 + r] = before - bases[r]
end
out[size + 4 + rules] = blocking
size = size + 4 + rules
-- </words>
return out
-- </answer>

--[[ In the templates that settle:
-- <charge>
-- After fit: as many requests as the debt has room for.
-- needs: allowed bases before n rules times
-- sets: allowed
local room = 4e12 - (before - bases[rules])
allowed = times
if n * allowed > room then allowed = math.max((room - room % n) / n, 0) end
-- </charge>

-- <lease>
-- A slice: how many of the requests it gets (times), and how long it lasts (long).
-- needs: bases least limits long present rules slot times total
-- sets: long times
local fits = math.max(limits[1] + bases[1] - total, 0)
for r = 2, rules do
  fits = math.max(math.min(fits, limits[r] + bases[r] - total), 0)
end
-- <span/>
-- </lease>

-- <slice/>

-- <ticket/>

-- <giveback/>
]]
