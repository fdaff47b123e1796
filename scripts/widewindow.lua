-- What fixedwindow.lua answers where its answer may be beyond 2^53.

--- answer
return {granted, before / 1000000, left}
