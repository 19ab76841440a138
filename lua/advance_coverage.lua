-- Move the CoverageCursor of an outbox partition forward and drop facts behind it (auditor).
--
-- KEYS   1 incarnation, 2 ws: writer shard, 3 wi: order of facts, 4 wa: facts
-- ARGV   1 incarnation, 2 covered_to8, then message_id16 of each fact
-- Reply  K; or R
-- Uses: compare, guard

local refused = foreign()
if refused then return refused end
local held = call('HGET', KEYS[2], 'v')
if not held or below(held, ARGV[2]) then call('HSET', KEYS[2], 'v', ARGV[2]) end
for i = 3, #ARGV do
  call('HDEL', KEYS[4], ARGV[i])
  call('ZREM', KEYS[3], ARGV[i])
end
return {'K'}
