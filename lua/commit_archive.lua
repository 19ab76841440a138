-- The archiver's position by compare-and-set, only forward; its offset is the archive watermark: every effective
-- record below it is in the archive (docs: pipeline, 5). A position that already stands at `to` is a retry.
--
-- KEYS   1 incarnation, 2 as: archiver of the partition
-- ARGV   1 incarnation, 2 epoch8, 3 from8, 4 position to (offset8 width1 digest topic), 5 filter8
-- Reply  K; or R; or F epoch8 (zeros where only the position differs, or `to` lies behind it)
-- Uses: compare, guard

local held = call('HMGET', KEYS[2], 'e', 'p')
local refused = foreign() or refusal(held[1], ARGV[2])
if refused then return refused end
local stands = held[2]
if stands then
  if stands == ARGV[4] then return {'K'} end
  if sub(stands, 1, 8) ~= ARGV[3] or below(sub(ARGV[4], 1, 8), ARGV[3]) then
    return {'F', '\0\0\0\0\0\0\0\0'}
  end
end
call('HSET', KEYS[2], 'p', ARGV[4], 'f', ARGV[5])
return {'K'}
