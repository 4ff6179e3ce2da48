-- order priority-fifo: higher priority first; then oldest first; start requests after the others of
-- their priority. What Scrapy does with FIFO queues.
local function order_rank(priority, start) return -priority * 2 + start end
local function order_newest_first(rank) return false end
