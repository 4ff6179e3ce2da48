-- probe: returns which commands of all scripts this user may not call. Leaves nothing behind.
-- ARGS     kind (of the crawl's start keys; empty: it has none)
-- RETURNS  OK | DENIED, the error of Redis for the first denied command, commands, ...
-- COST     O(commands), which are about 50
-- CRASH    nothing to do
-- @include rights
local refused, message = refused_commands(ARGV[1])
if not refused[1] then return { 'OK' } end
return { 'DENIED', message, unpack(refused) }
