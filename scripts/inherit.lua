-- Reads the state of any bucket, whatever its configuration was.
-- missing  units missing at the anchor, or now if there is none
-- anchor   the last step of a stepped bucket
-- unit     nil when this is no state of a bucket
-- A permit of another size counts as a whole permit, so that a changed rate never
-- grants more.

--- inherit
local anchor
local at, unit, tail = string.match(state, '^(%d+)/([1-9]%d*)(.*)$')
if unit then
  local speed, rest = string.match(tail, '^/([1-9]%d*)%+(%d+)$')
  if speed then
    missing = (at - now) * speed + rest
  elseif tail == '' then
    missing = at - now
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
  missing = math.ceil(missing / unit) * permit
end
