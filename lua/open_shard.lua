-- OPEN (b) of a writer shard: raise its fence and tell from where the outbox must be applied.
--
-- KEYS   1 incarnation, 2 ws: writer shard, 3 wi: order of facts
-- ARGV   1 epoch8, 2 fresh marker for an empty keyspace, 3 opener (see lib/open)
-- Reply  K marker applied8 filter8 hlc16 ('' where nothing stands) greatest recorded message_id or '',
--        applied8 digest16 as they were put together last, or ''; or U; or F epoch8
-- Uses: compare, open

local marker, refused = opened()
if refused then return refused end
local held = call('HMGET', KEYS[2], 'a', 'f', 'h', 'd')
local last = call('ZREVRANGEBYLEX', KEYS[3], '+', '-', 'LIMIT', '0', '1')[1]
return {'K', marker, held[1] or '', held[2] or '', held[3] or '', last or '', held[4] or ''}
