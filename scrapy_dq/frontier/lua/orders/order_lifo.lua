-- order lifo: newest first, whatever the priority.
local function order_rank(priority, start) return 0 end
local function order_newest_first(rank) return true end
