-- orders: the rank of an entry, and the order within a rank; both depend on the crawl's order (`meta`). Lower ranks are
-- served first.
-- In an order by priority, start requests come after the others of their priority: the oldest (start 1) or the newest
-- (2) first. Scrapy's queues have these orders: LIFO, which is the default of its scheduler, and FIFO.
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
