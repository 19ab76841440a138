-- The archive watermark of a partition, for whoever only looks.
--
-- KEYS   1 incarnation, 2 as: archiver of the partition
-- ARGV   1 '' (any marked keyspace will do)
-- Reply  K offset8, or '' where no position stands; or R
-- Uses: compare, guard

local refused = unmarked()
if refused then return refused end
local held = call('HGET', KEYS[2], 'p')
return {'K', held and sub(held, 1, 8) or ''}
