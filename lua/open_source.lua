-- Fanout's Open of an outbox partition: raise the fence and read the checkpoint.
--
-- KEYS   1 incarnation, 2 fs: source
-- ARGV   1 epoch8, 2 fresh marker for an empty keyspace, 3 opener (see lib/open)
-- Reply  K marker position (offset8 width1 digest topic, or '') filter8 or ''; or U; or F epoch8
-- Uses: compare, open

local marker, refused = opened()
if refused then return refused end
local held = call('HMGET', KEYS[2], 'p', 'f')
return {'K', marker, held[1] or '', held[2] or ''}
