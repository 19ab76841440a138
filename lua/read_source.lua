-- A source partition's checkpoint, receipts and dead letters in a range of offsets (auditor).
--
-- KEYS   1 incarnation, 2 fs: source, 3 fr: receipts, 4 fd: dead letters, 5 ws: writer shard
-- ARGV   1 '' (any marked keyspace will do), 2 lower bound, 3 upper bound, 4 limit of either list
-- Reply  K, position (offset8 width1 digest topic) or '', applied8 or '', receipts, dead letters (offset8 bytes each),
--        marker, lost ranges (low8 high8)* or '', applied8 digest16 as they were put together last, or ''; or R
-- Uses: compare, guard

local refused = unmarked()
if refused then return refused end
return {
  'K', call('HGET', KEYS[2], 'p') or '', call('HGET', KEYS[5], 'a') or '',
  call('ZRANGEBYLEX', KEYS[3], ARGV[2], ARGV[3], 'LIMIT', '0', ARGV[4]),
  call('ZRANGEBYLEX', KEYS[4], ARGV[2], ARGV[3], 'LIMIT', '0', ARGV[4]),
  call('GET', KEYS[1]), call('HGET', KEYS[2], 'l') or '', call('HGET', KEYS[5], 'd') or '',
}
