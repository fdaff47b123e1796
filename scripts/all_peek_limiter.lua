-- A limiter in all_peek.lua.
do
  -- <request/>
  -- <config/>
  -- <load/>
  -- <fit/>
  -- <seek?/>
  -- <wait?/>
  size = size + 1
  out[size] = allowed
  -- <words/>
  -- <settle/>
end
