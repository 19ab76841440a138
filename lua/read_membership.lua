-- The latest membership of one conversation, for its writer.
--
-- KEYS   1 incarnation, 2 ws: writer shard, 3 c: conversation, 4 gm: members, 5 gv: versions
-- ARGV   1 incarnation, 2 epoch8
-- Reply  K alone: no such conversation; K kind1 version8 digest16 control_seq8, users16 or '', creator8, name, meta,
--        control_seq8 bitmap or '', then user8, slot4 (joined8 left8)* of all who ever were members; or R; or F epoch8
-- Uses: compare, guard

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end
local held = call('HMGET', KEYS[3], 'v', 'u', 'o', 'n', 'm')
if not held[1] then return {'K'} end
local version = call('HGET', KEYS[5], sub(held[1], 2, 25))
local reply = {'K', held[1], held[2] or '', held[3] or '', held[4] or '', held[5] or '', version or ''}
local members = call('HGETALL', KEYS[4])
for i = 1, #members do reply[7 + i] = members[i] end
return reply
