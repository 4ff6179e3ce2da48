-- order priority-lifo: higher priority first; then newest first; start requests after the others of
-- their priority, in the order they were yielded. This is the order of Scrapy's default scheduler.
local function order_rank(priority, start) return -priority * 2 + start end
local function order_newest_first(rank) return rank % 2 == 0 end
