-- SessionProjection's Open of a shard: raise the fence and read both positions (docs: pipeline, 4).
--
-- KEYS   1 incarnation, 2 ss: session shard
-- ARGV   1 epoch8, 2 fresh marker for an empty keyspace, 3 opener (see lib/open)
-- Reply  K marker, dispatch position, user-state position (offset8 width1 digest topic, or ''), shard_epoch8 of the
--        mailbox shard where it was raised, or ''; or U; or F epoch8
-- Uses: compare, open

local marker, refused = opened()
if refused then return refused end
local held = call('HMGET', KEYS[2], 'p', 'u', 'm')
return {'K', marker, held[1] or '', held[2] or '', held[3] or ''}
