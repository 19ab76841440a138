-- Drop the leading hot rows of a shard that are archived and older than the hot window, and raise each conversation's
-- hot floor above them in the same script (docs: pipeline, 5). Offset order is seq order inside a conversation, so all
-- below the floor is archived too.
--
-- KEYS   1 incarnation, 2 ws: writer shard, 3 as: archiver of the partition, 4 ho: order of hot rows
-- ARGV   1 incarnation, 2 epoch8, 3 before_wall8 (rows sent earlier are old), 4 limit, 5 limit plus one
-- Reply  K removed, '1' or '0' (more); or R; or F epoch8
-- Uses: compare, successor, guard
-- allow-file (tonumber, <): counts of rows
-- allow-file (..): prefixes before fixed-width ids, range marks before fixed-width values

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end
local position = call('HGET', KEYS[3], 'p')
if not position then return {'K', 0, '0'} end

-- a row: offset8 sent_at8 conversation16 seq8
local limit = tonumber(ARGV[4])
local rows = call('ZRANGEBYLEX', KEYS[4], '-', '(' .. sub(position, 1, 8), 'LIMIT', '0', ARGV[5])
local floors, order, old, more = {}, {}, {}, '0'
for i = 1, #rows do
  if not below(sub(rows[i], 9, 16), ARGV[3]) then break end
  if #old == limit then
    more = '1'
    break
  end
  old[#old + 1] = {row = rows[i], seq = sub(rows[i], 33, 40), above = successor(sub(rows[i], 33, 40))}
  local conversation = sub(rows[i], 17, 32)
  if not floors[conversation] then
    floors[conversation] = call('HGET', 'c:' .. conversation, 'f') or '\0\0\0\0\0\0\0\0'
    order[#order + 1] = conversation
  end
  floors[conversation] = greater(floors[conversation], old[#old].above)
end

for i = 1, #old do
  call('ZREMRANGEBYLEX', 'h:' .. sub(old[i].row, 17, 32), '[' .. old[i].seq, '(' .. old[i].above)
  call('ZREM', KEYS[4], old[i].row)
end
for i = 1, #order do call('HSET', 'c:' .. order[i], 'f', floors[order[i]]) end
return {'K', #old, more}
