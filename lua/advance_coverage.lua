-- Move the CoverageCursor of an outbox partition forward and drop facts behind it (auditor).
--
-- KEYS   1 incarnation, 2 wc: fence of the cursor, 3 ws: writer shard, 4 wi: order of facts, 5 wa: facts
-- ARGV   1 incarnation, 2 epoch8, 3 covered_to8, then message_id16 of each fact
-- Reply  K; or R; or F epoch8
-- Uses: compare, guard

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end
local held = call('HGET', KEYS[3], 'v')
if not held or below(held, ARGV[3]) then call('HSET', KEYS[3], 'v', ARGV[3]) end
for i = 4, #ARGV do
  call('HDEL', KEYS[5], ARGV[i])
  call('ZREM', KEYS[4], ARGV[i])
end
return {'K'}
