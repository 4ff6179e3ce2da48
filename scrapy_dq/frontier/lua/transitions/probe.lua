-- probe: which commands of all scripts this user may not call. Nothing stays written.
-- ARGS     none
-- RETURNS  OK | DENIED, what Redis says of the first, commands, ...
-- COST     O(commands), 50
-- CRASH    nothing to do
-- USES     rights.refused_commands
local refused, words = refused_commands()
if not refused[1] then return { 'OK' } end
return { 'DENIED', words, unpack(refused) }
