-- Limiters in all_limiter.lua that have a function of their own, because Lua allows 200 local
-- variables in one. Few groups are so large: a closure costs Redis in every execution.
do
  local failed = (function()
    -- <inner/>
  end)()
  if failed then return failed end
end
