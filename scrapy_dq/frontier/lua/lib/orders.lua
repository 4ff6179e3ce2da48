-- orders: the rank of an entry, lower first, and which of one rank comes first, by the order of the crawl (`meta`).
-- In an order by priority, start requests come after the others of their priority: the oldest (start 1) or the newest
-- (2) first. These are the orders of Scrapy with its LIFO and FIFO queues; the former is that of its default scheduler.
-- @include state
local function order_rank(priority, start)
  if state.order == 'fifo' or state.order == 'lifo' then return 0 end
  return -priority * 4 + start
end
local function order_newest_first(rank)
  if state.order == 'priority-lifo' then return rank % 4 ~= 1 end
  if state.order == 'priority-fifo' then return rank % 4 == 2 end
  return state.order == 'lifo'
end
