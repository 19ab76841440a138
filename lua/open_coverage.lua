-- The auditor's Open of an outbox partition's CoverageCursor: raise the fence and read the cursor (docs: pipeline, 8).
--
-- KEYS   1 incarnation, 2 wc: fence of the cursor, 3 ws: writer shard
-- ARGV   1 epoch8, 2 fresh marker for an empty keyspace, 3 opener (see lib/open)
-- Reply  K marker covered_to8 or ''; or U; or F epoch8
-- Uses: compare, open

local marker, refused = opened()
if refused then return refused end
return {'K', marker, call('HGET', KEYS[3], 'v') or ''}
