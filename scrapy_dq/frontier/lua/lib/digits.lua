-- digits: whole numbers that somebody else may have written: text, "nan", or so many digits that one more adds nothing.
local MOST_RUNS = 2 ^ 52 -- join.lua counts no further
local function digits(text, most) return math.min(tonumber(string.match(text or '', '^%d+$') or 0), most) end
