-- Raise the floor of a source partition and drop claims below it, a bounded number a call (docs: pipeline, 3.4). Not by
-- what was promised before the shard was bumped: fanout dispatches again what the log lost of it (docs: pipeline, 7).
--
-- KEYS   1 incarnation, 2 ms: mailbox shard, 3 mc: claims, 4 mx: order of claims
-- ARGV   1 incarnation, 2 epoch8, 3 partition4, 4 floor8, 5 limit
-- Reply  K, '1' or '0' (more); or R; or F epoch8
-- Uses: compare, guard
-- allow-file (tonumber, <): a limit and counts of rows
-- allow-file (..): every part has a fixed width

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end
local field, floor = 'f' .. ARGV[3], ARGV[4]
local promised = call('HGET', KEYS[2], 'g' .. ARGV[3])
if promised and not below(promised, floor) then return {'K', '0'} end
local held = call('HGET', KEYS[2], field)
if held then floor = greater(held, floor) end
if held ~= floor then call('HSET', KEYS[2], field, floor) end
local limit = tonumber(ARGV[5])
local members = call('ZRANGEBYLEX', KEYS[4], '[' .. ARGV[3], '(' .. ARGV[3] .. floor, 'LIMIT', '0', limit + 1)
local more = '0'
for i = 1, #members do
  if i > limit then
    more = '1'
    break
  end
  call('HDEL', KEYS[3], sub(members[i], 13))
  call('ZREM', KEYS[4], members[i])
end
return {'K', more}
