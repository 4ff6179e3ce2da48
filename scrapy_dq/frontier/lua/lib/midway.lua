-- midway: what this script has taken from one place and not put into the other yet. A script has no roll-back: if it
-- is stopped there (the ACL refuses a command, or there is an error), salvage.lua notes it and mend.lua puts it right.
local adding, adding_to -- a token that was added, and its admission; its entry is nowhere yet
local moving -- a lease that was taken out, with its id and, if it was in flight, its worker
local falling_due -- a member that was taken out of delayed
local opening, opening_rank -- the list that was appended to last: if it has just begun, its band may be missing
local popped, popped_head, popped_taken -- elements of a list, what makes records of them, how many were granted
-- Once in a script:
--   worker, seq    of an exchange
--   grants         as grants.lua has them
--   remembered     the answer is stored: what was granted stays in flight
--   seen           returns what the directory of a compact `seen` is to say (seen_compact.lua)
--   seen_kind      what meta is to say (convert.lua)
--   registering    a worker whose record may be there, though it is no member
--   removing       one that is to go: what it had is elsewhere
--   deltas, at     what is being added to the sums of all workers (sums.lua), and which is next
local midway = {}
