-- Entries of several users; which are alive is judged by the caller's clock.
--
-- KEYS   1 incarnation, then pr: presence of each user
-- ARGV   1 '' (any marked keyspace will do)
-- Reply  K and one array a user: device, entry (session_epoch8 attempt8 expires8 conn8 gateway), repeated; or R
-- Uses: compare, guard

local refused = unmarked()
if refused then return refused end
local reply = {'K'}
for key = 2, #KEYS do reply[key] = call('HGETALL', KEYS[key]) end
return reply
