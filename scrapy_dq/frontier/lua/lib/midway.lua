-- midway: what this script has removed from one key and not stored in another yet. Scripts have no rollback: if one is
-- stopped there (the ACL denies a command, or by an error), salvage.lua records this and mend.lua repairs it.
local adding, adding_to = nil -- EACH CALL. A token that was added, and its admission; its entry is not stored yet
local moving = nil -- EACH CALL. A lease that was removed, with its id and, if it was in flight, its worker
local falling_due = nil -- EACH CALL. A member that was removed from delayed
local opening, opening_rank = nil -- EACH CALL. The list that was appended to last: if it is new, a band may be missing
-- Popped list elements, the prefix of their records, how many were granted.
local popped, popped_head, popped_taken = nil -- EACH CALL
-- At most once in a script:
--   worker, seq, nonce   of an exchange
--   grants         the table of grants.lua
--   remembered     the answer is stored: granted leases stay in flight
--   seen           function that returns the new directory of a compact `seen` (seen_compact.lua)
--   seen_kind      the new value in meta (convert.lua)
--   registering    a worker whose record may exist, though it is not a member
--   removing       a worker that is being removed: its leases are stored elsewhere
--   spent          by partition, what is to be added to its spent budget (budgets.lua)
--   deltas, at     what is being added to the sums of all workers (sums.lua), and the position of the next one
local midway = {} -- EACH CALL
