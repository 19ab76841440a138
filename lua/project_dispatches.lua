-- Conversations that got a message, and the dispatch position by compare-and-set, in one script (docs: pipeline, 4).
-- Activity and seq are the greatest ones seen, so a replay changes nothing. A position that already stands at `to`
-- is a retry and answers done.
--
-- KEYS   1 incarnation, 2 ss: session shard, then sc: conversations of a user, one a row
-- ARGV   1 incarnation, 2 epoch8, 3 from8, 4 position to (offset8 width1 digest topic), then three a row:
--        conversation16, activity16 (zeros: it doesn't raise the conversation), seq8 touched16
-- Reply  K; or R; or F epoch8 (zeros where only the position differs)
-- Uses: compare, guard
-- allow-file (..): every part has a fixed width

local held = call('HMGET', KEYS[2], 'e', 'p')
local refused = foreign() or refusal(held[1], ARGV[2])
if refused then return refused end
if held[2] ~= false and sub(held[2], 1, 8) ~= ARGV[3] then
  if held[2] == ARGV[4] then return {'K'} end
  return {'F', '\0\0\0\0\0\0\0\0'}
end

for key = 3, #KEYS do
  local at = 5 + (key - 3) * 3
  local conversation, activity, touch = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local row = call('HGET', KEYS[key], conversation)
  if row then
    activity = greater(activity, sub(row, 1, 16))
    touch = greater(sub(touch, 1, 8), sub(row, 17, 24)) .. greater(sub(touch, 9), sub(row, 25))
  end
  local value = activity .. touch
  if value ~= row then call('HSET', KEYS[key], conversation, value) end
end
call('HSET', KEYS[2], 'p', ARGV[4])
return {'K'}
