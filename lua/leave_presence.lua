-- A connection ended: remove its entry unless a newer one stands.
--
-- KEYS   1 incarnation, 2 pr: presence of the user
-- ARGV   1 '' (any marked keyspace will do), 2 device, 3 session_epoch8
-- Reply  K; or R
-- Uses: compare, guard

local refused = unmarked()
if refused then return refused end
local held = call('HGET', KEYS[2], ARGV[2])
if held and sub(held, 1, 8) == ARGV[3] then call('HDEL', KEYS[2], ARGV[2]) end
return {'K'}
