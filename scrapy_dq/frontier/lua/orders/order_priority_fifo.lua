-- order priority-fifo: higher priority first; then oldest first; start requests after the others of their priority,
-- oldest (start 1) or newest (2) first. The order of Scrapy with FIFO queues.
local function order_rank(priority, start) return -priority * 4 + start end
local function order_newest_first(rank) return rank % 4 == 2 end
