-- The delivered watermarks of one user's devices (docs: pipeline, 4).
--
-- KEYS   1 incarnation, 2 dv: delivered watermarks of the user
-- ARGV   1 incarnation
-- Reply  K and device, seq8 in turn; or R
-- Uses: compare, guard

local refused = foreign()
if refused then return refused end
return {'K', call('HGETALL', KEYS[2])}
