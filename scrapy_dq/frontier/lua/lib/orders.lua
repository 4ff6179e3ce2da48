-- orders: computes the rank of an entry, and the order of the entries within a rank. Both depend on the crawl's order,
-- which `meta` stores. Redis serves lower ranks first.
-- In an order by priority, *start* is 1 or 2 for start requests that come after all other requests of their priority:
-- the oldest first (1), or the newest first (2). It is 0 for all other requests. Scrapy's queues have the same two
-- orders, FIFO and LIFO; LIFO is the default of Scrapy's scheduler.
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
