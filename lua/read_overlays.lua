-- Recalls laid on conversation_seqs, for pulls and caches: content-addressed, so no fence.
--
-- KEYS   1 incarnation, then two a name: wo: pending overlays of the writer shard, ov: recalls of the conversation
-- ARGV   1 '' (any marked keyspace will do), then conversation16 seq8 a name
-- Reply  K and, a name, the seq8 of the recall that counts or ''; or R
-- Uses: compare, guard, overlays

local refused = unmarked()
if refused then return refused end
local reply, key = {'K'}, 2
for i = 2, #ARGV do
  local held = call('HGET', KEYS[key + 1], sub(ARGV[i], 17, 24))
  reply[i] = overlay_counts(KEYS[key], sub(ARGV[i], 1, 16), held)
  key = key + 2
end
return reply
