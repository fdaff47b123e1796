-- Requests to several limiters at once, as all_one.lua, under an id: while the id is remembered, the reply is
-- that of the execution that allowed them, and nothing is taken. A denial is not remembered.
--
-- KEYS   as in all.lua, and the key of the id
-- ARGV   as in all.lua; behind the request for how many milliseconds the id is remembered, and what it stands for
-- State  of the id: what it stands for, and the words of the reply
-- Reply  that of all.lua, and 1 if it is remembered, 0 if not
local call = redis.pcall
local budget = 0 -- of an execution for many requests
-- <clock?/>
-- <shape/>
local out, size = {}, 0
local skipped, request = 0, configured + 1
do
  local known = call('GET', KEYS[#KEYS])
  if known then
    if known.err then return known end
    local stands, words = string.match(known, '^(%x+) (.*)$')
    if stands ~= ARGV[request + limiters + 2] then return {err = 'REUSED the id stands for another call'} end
    for word in string.gmatch(words, '%S+') do
      size = size + 1
      out[size] = word + 0
    end
    out[size + 1] = 1
    return out
  end
end
local times = ARGV[request] + 0
local all = times
-- <limiters/>
if all > 0 then
  local words = {ARGV[request + limiters + 2]}
  for i = 1, size do
    words[i + 1] = string.format('%d', out[i])
  end
  redis.call('SET', KEYS[#KEYS], table.concat(words, ' '), 'PX', ARGV[request + limiters + 1])
end
out[size + 1] = 0
return out
