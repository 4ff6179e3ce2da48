-- probe: which of the commands in all scripts this user may not call. Leaves nothing behind.
-- ARGS     none
-- RETURNS  OK | DENIED, the error of Redis for the first, commands, ...
-- COST     O(commands), 50
-- CRASH    nothing to do
-- USES     rights.refused_commands
local refused, words = refused_commands()
if not refused[1] then return { 'OK' } end
return { 'DENIED', words, unpack(refused) }
