-- order priority-lifo: higher priority first; then newest first; start requests after the others of their priority,
-- oldest (start 1) or newest (2) first. The former is the order of Scrapy's default scheduler.
local function order_rank(priority, start) return -priority * 4 + start end
local function order_newest_first(rank) return rank % 4 ~= 1 end
