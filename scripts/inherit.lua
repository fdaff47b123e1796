-- What the continuous and the stepped bucket share: reading the state of either,
-- whatever its configuration was, and taking permits.
-- missing  units missing at the anchor, or now if there is none
-- anchor   the last step of a stepped bucket
-- unit     nil when this is no state of a bucket
-- stale    true when the state is of another rate or kind, and so has to be stored
--          as one of this, by a denied call too: what flows from now on flows by
--          this rate
-- Parts of a permit are rounded up, so that a changed rate never grants more.

--- inherit
local anchor
local at, unit, tail = string.match(state, '^(%d+)/([1-9]%d*)(.*)$')
if unit then
  local speed, rest = string.match(tail, '^/([1-9]%d*)%+(%d+)$')
  if speed then
    missing = (at - now) * speed + rest
    if speed ~= flow then stale = true end
  elseif tail == '' then
    missing = at - now
    if flow ~= '1' then stale = true end
  else
    rest = string.match(tail, '^%+(%d+)$')
    if rest then
      missing = rest + 0
      anchor = at + 0
    else
      unit = nil
    end
  end
end
if unit and unit ~= permit then
  local part = missing % unit
  missing = (missing - part) / unit * permit + math.ceil(part * permit / unit)
  if part * permit >= 2 ^ 53 then missing = missing + 1 end -- that was rounded
  stale = true
end

--- take
local cost, granted, before = n * permit, times, missing
local room = capacity - missing
if cost * granted > room then
  granted = (room - room % cost) / cost
end
missing = missing + granted * cost

