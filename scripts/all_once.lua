-- Requests to several limiters, each under an id: while the id is remembered, the reply is that of the request that
-- was allowed, and nothing is taken. A denial is not remembered. These blocks stand in all.lua and all_one.lua
-- (internal/scripts/together.go).
--
-- KEYS   as in all.lua; the last one of each request is the key of its id
-- ARGV   as in all.lua; the last one of each request is for how many milliseconds the id is remembered, a slash, and what
--        it stands for. Equal requests are one
-- State  of the id: what it stands for, and the words of the reply
-- Reply  for each request that of all.lua, and 1 if it is remembered, 0 if not

-- <known>
local lasts, stands = string.match(ARGV[request + limiters], '^(%d+)/(%x+)$')
local first, known = size, call('GET', KEYS[skipped + limiters])
times = 1
all = 1
if known then
  if known.err then return known end
  local same, words = string.match(known, '^(%x+) (.*)$')
  if same ~= stands then return {err = 'REUSED the id stands for another call'} end
  for word in string.gmatch(words, '%S+') do
    size = size + 1
    out[size] = word + 0
  end
end
-- </known>

-- <remember>
if all > 0 then
  local words = {stands}
  for i = first + 1, size do
    words[i - first + 1] = string.format('%d', out[i])
  end
  redis.call('SET', KEYS[skipped + limiters], table.concat(words, ' '), 'PX', lasts)
end
-- </remember>
