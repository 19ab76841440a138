-- A session shard forgets its dispatch position, so that it starts at the log's start, under a new shard_epoch of its
-- mailbox shard (docs: pipeline, 7). Rows stay, since a replay only raises them.
--
-- KEYS   1 incarnation, 2 ss: session shard
-- ARGV   1 incarnation, 2 epoch8, 3 shard_epoch8
-- Reply  K; or R; or F epoch8
-- Uses: compare, guard

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end
call('HDEL', KEYS[2], 'p')
call('HSET', KEYS[2], 'm', ARGV[3])
return {'K'}
