-- The operator's word on a source partition: receipts replaced, and its checkpoint put where fanout goes on from, by
-- compare-and-set and under its fence (docs: pipeline, 2 and 7). A checkpoint that was put back already is left alone:
-- fanout may have written receipts since.
--
-- KEYS   1 incarnation, 2 fs: source, 3 fr: receipts
-- ARGV   1 incarnation, 2 epoch8, 3 from8, 4 position to (offset8 width1 digest topic), 5 filter8, 6 offset8 from and
--        offset8 to below which receipts are dropped, or '', 7 low8 high8 of offsets whose records were lost and stand elsewhere now, or '',
--        then three a receipt: offset8, the offset8 after it, receipt
-- Reply  K; or R; or F epoch8 (zeros where only the position differs)
-- Uses: compare, guard
-- allow-file (..): every part but the last has a fixed width

local held = call('HMGET', KEYS[2], 'e', 'p', 'l')
local refused = foreign() or refusal(held[1], ARGV[2])
if refused then return refused end
if held[2] and sub(held[2], 1, 8) ~= ARGV[3] then
  if held[2] == ARGV[4] then return {'K'} end
  return {'F', '\0\0\0\0\0\0\0\0'}
end

if ARGV[6] ~= '' then
  call('ZREMRANGEBYLEX', KEYS[3], '[' .. sub(ARGV[6], 1, 8), '(' .. sub(ARGV[6], 9))
end
for i = 8, #ARGV, 3 do
  call('ZREMRANGEBYLEX', KEYS[3], '[' .. ARGV[i], '(' .. ARGV[i + 1])
  call('ZADD', KEYS[3], '0', ARGV[i] .. ARGV[i + 2])
end
local lost = held[3] or ''
if ARGV[7] ~= '' and sub(lost, -16) ~= ARGV[7] then call('HSET', KEYS[2], 'l', lost .. ARGV[7]) end
call('HSET', KEYS[2], 'p', ARGV[4], 'f', ARGV[5])
return {'K'}
