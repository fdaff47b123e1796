-- A limiter in all.lua and all_one.lua. The limiters after it are decided inside its
-- scope, so that all blocks keep their own names. All that reads a key is in front of
-- <inner/>, and all that takes permits behind it: a request that finds a key corrupt has
-- taken nothing from the others. What is here uses:
--   all    how many of the equal requests are allowed by this limiter and those around it,
--          and after <inner/> by all limiters
do
  -- <request/>
  -- <config/>
  -- <load/>
  -- <fit/>
  -- <seek?/>
  if allowed < all then all = allowed end
  -- <inner/>
  size = size + 1
  out[size] = allowed
  if allowed > all then -- another limiter allows fewer, and this one denies nothing
    allowed = all
    times = all
  end
  -- <take/>
  -- <wait?/>
  -- <words/>
  -- <settle/>
  if allowed > 0 or repair then
    -- <store/>
  else
    -- <expire?/>
  end
  -- <sealed/>
end
