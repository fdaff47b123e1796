-- A limiter in finish.lua.
do
  -- <request/>
  local first = size + 1
  size = first
  out[first] = 0
  local ok, failed = pcall(function()
    -- <config/>
    -- <if hold>
    local permits, id = string.match(operations, '^(%d+)r(%w+)$')
    local names = {}
    for i = 1, permits + 0 do
      names[i] = i .. '/' .. id .. rule
    end
    redis.call('ZREM', key, unpack(names))
    size = size + 1
    out[size] = 1
    -- </if hold>
    -- <unless hold>
    local begin = 1
    local permits, kind, amount, which, stop = string.match(operations, '^(%d+)(%a)(%d*)/?(%d*),?()')
    local back = kind == 'g' and permits + 0
    -- <tickets?/>
    -- <load/>
    if back then
      local where = amount
      -- <giveback/>
      size = size + 1
      out[size] = given
    elseif kind == 'c' then
      local n, times = permits + 0, amount + 0
      -- <fit/>
      -- <charge/>
      -- <seek?/>
      -- <take/>
      -- <wait?/>
      -- <words/>
      if allowed > 0 or repair then
        -- <store/>
      else
        -- <expire?/>
      end
    end
    -- </unless hold>
  end)
  if not ok or failed then
    for j = first + 1, size do
      out[j] = nil
    end
    size = first
  end
  out[first] = size - first
end
