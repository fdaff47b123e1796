-- Searches a log.

--- find
local broken = false
-- The last entry between low and high that is not beyond the mark, in at most
-- two reads for each halving: first next to low, where a trimmed log has it, then
-- where evenly spaced entries would have it, then in the middle.
local function find(read, mark, low, high, lowest, highest)
  local guess, halve = low + 1, true
  while high - low > 1 do
    local value = read(guess)
    if not value then
      broken = true
      return low
    end
    if value <= mark then
      low = guess
      lowest = value
    else
      high = guess
      highest = value
    end
    halve = not halve
    if halve or highest <= lowest then
      guess = math.floor((low + high) / 2)
    else
      guess = low + math.floor((high - low) * (mark - lowest) / (highest - lowest))
      guess = math.min(math.max(guess, low + 1), high - 1)
    end
  end
  return low
end
