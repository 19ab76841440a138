-- Watermarks and trim of a mailbox shard, and what an earlier shard_epoch left behind (auditor, operator).
--
-- KEYS   1 incarnation, 2 ms: mailbox shard
-- ARGV   1 '' (any marked keyspace will do)
-- Reply  K marker, watermarks (packed) or '', trim8 or '', redo offsets (partition4 offset8)* or '',
--        offsets (partition4 offset8)* below which everything was materialised then, or ''; or R
-- Uses: compare, guard

local refused = unmarked()
if refused then return refused end
local held = call('HMGET', KEYS[2], 'w', 't', 'r', 'b')
return {'K', call('GET', KEYS[1]), held[1] or '', held[2] or '', held[3] or '',
  held[4] or held[3] or ''}
