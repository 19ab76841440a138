-- ConversationHeads, only forward.
--
-- KEYS   1 incarnation, 2 ws: writer shard, then c: conversation of each
-- ARGV   1 incarnation, 2 epoch8, then seq8 activity16 message_id16 of each
-- Reply  K; or R; or F epoch8
-- Uses: compare, guard

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end
for key = 3, #KEYS do
  local held = call('HGET', KEYS[key], 'h')
  if not held or below(sub(held, 1, 8), sub(ARGV[key], 1, 8)) then
    call('HSET', KEYS[key], 'h', ARGV[key])
  end
end
return {'K'}
