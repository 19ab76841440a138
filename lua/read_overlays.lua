-- Recalls laid on conversation_seqs, for pulls, pushes and caches: content-addressed, so no fence. Whether they can be
-- believed is told beside them: a store that lost its tail has lost overlays, and no shard is whole before its OPEN.
--
-- KEYS   1 incarnation, ws: of each writer shard named, then two a name: wo: pending overlays of the writer shard,
--        ov: recalls of the conversation
-- ARGV   1 '' (any marked keyspace will do), 2 how many writer shards, then conversation16 seq8 a name
-- Reply  K, the run_id for which each shard is whole or '', then a name the seq8 of the recall that counts or ''; or R
-- Uses: compare, guard, overlays
-- allow-file (tonumber): a count of keys

local refused = unmarked()
if refused then return refused end
local shards = tonumber(ARGV[2])
local reply = {'K'}
for i = 1, shards do reply[i + 1] = call('HGET', KEYS[i + 1], 'o') or '' end
local key = shards + 2
for i = 3, #ARGV do
  local held = call('HGET', KEYS[key + 1], sub(ARGV[i], 17, 24))
  reply[#reply + 1] = overlay_counts(KEYS[key], sub(ARGV[i], 1, 16), held)
  key = key + 2
end
return reply
