-- The read marks of many users in one conversation (docs: pipeline, 4).
--
-- KEYS   1 incarnation, then sr: read marks, one a user
-- ARGV   1 incarnation, 2 conversation16
-- Reply  K and read8 offset8 or '' a user; or R
-- Uses: compare, guard

local refused = foreign()
if refused then return refused end
local reply = {'K'}
for key = 2, #KEYS do reply[key] = call('HGET', KEYS[key], ARGV[2]) or '' end
return reply
