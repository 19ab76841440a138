-- Receipts and dead letters of a source partition, then its checkpoint by compare-and-set, in one script
-- (docs: pipeline, 2). A checkpoint that already stands at `to` is a retry and answers done.
--
-- KEYS   1 incarnation, 2 fs: source, 3 fr: receipts, 4 fd: dead letters
-- ARGV   1 incarnation, 2 epoch8, 3 from8, 4 position to (offset8 width1 digest topic), 5 filter8, 6 number of
--        receipts, 7 the log's start8, or '': receipts below it go, a bounded number a call, since what they tell of is gone,
--        then offset8 bytes of each receipt and each dead letter
-- Reply  K; or R; or F epoch8 (zeros where only the position differs)
-- Uses: compare, guard
-- allow-file (tonumber, <): counts of arguments
-- allow-file (..): a bound of a range

local held = call('HMGET', KEYS[2], 'e', 'p')
local refused = foreign() or refusal(held[1], ARGV[2])
if refused then return refused end
if held[2] ~= false and sub(held[2], 1, 8) ~= ARGV[3] then
  if held[2] == ARGV[4] then return {'K'} end
  return {'F', '\0\0\0\0\0\0\0\0'}
end

local receipts = tonumber(ARGV[6])
for i = 8, #ARGV do
  call('ZADD', i < 8 + receipts and KEYS[3] or KEYS[4], '0', ARGV[i])
end
if ARGV[7] ~= '' then
  local gone = call('ZRANGEBYLEX', KEYS[3], '-', '(' .. ARGV[7], 'LIMIT', '0', '1024')
  if #gone ~= 0 then call('ZREM', KEYS[3], unpack(gone)) end
end
call('HSET', KEYS[2], 'p', ARGV[4], 'f', ARGV[5])
return {'K'}
