-- What Redis gives to a script.
std = { read_globals = {
  "redis", "KEYS", "ARGV", "string", "math", "tonumber", "type", "unpack", "pairs", "pcall", "table",
} }
max_comment_line_length = false
ignore = {
  "581", -- not (a >= b): it is true even where one of them is NaN
  "311/size", "311/used", "311/current", -- a block adds to it for the next run of requests
  "311/budget", "311/life", -- a script for one request has none, or needs it once
  "122/KEYS", -- cut, where the second half are keys beside the first
}
-- These have places for the blocks of other files: make lint checks the complete texts.
exclude_files = { "scripts/many.lua", "scripts/operations.lua", "scripts/holds.lua", "scripts/peek.lua", "scripts/all*.lua", "scripts/tickets*.lua", "scripts/finish*.lua",
  "scripts/callersclock.lua", "scripts/bucket.lua", "scripts/steppedbucket.lua", "scripts/bucket_rules.lua",
  "scripts/sliding.lua", "scripts/slidinglog.lua", "scripts/slidingwindow_*.lua" }
-- A Peek stores nothing, and a block that is cut out keeps what its other uses need.
files["scripts/assembled/*_many.lua"] = { ignore = { "542" } } -- nothing to keep
files["scripts/assembled/inflight_holds.lua"] = { ignore = { "2..", "3..", "4..", "542" } }
files["scripts/assembled/*_operations.lua"] = { ignore = { "2..", "3..", "4..", "542", "631" } } -- giving back and the others share a load
files["scripts/*,operations"] = { ignore = { "2..", "3..", "4..", "542", "631" } }
files["scripts/bucket,one"] = { ignore = { "231/late" } } -- its words have it
-- Each limiter is inside the scope of the one before it, and hides its names.
files["scripts/assembled/all_*.lua"] = { ignore = { "2..", "3..", "4..", "542", "631" } }
