-- Hot rows of a writer shard in the order of their outbox offsets: what a log that lost them is filled up with (docs:
-- pipeline, 7).
--
-- KEYS   1 incarnation, 2 ho: order of hot rows
-- ARGV   1 '' (any marked keyspace will do), 2 low8 (the first offset), 3 limit, 4 limit plus one
-- Reply  K, '1' or '0' (more), then offset8 and stored a row ('' where its history row is gone); or R
-- Uses: compare, guard, rows
-- allow-file (tonumber, <): counts of rows
-- allow-file (..): prefixes before fixed-width ids

local refused = unmarked()
if refused then return refused end
local limit = tonumber(ARGV[3])
-- a row: offset8 sent_at8 conversation16 seq8
local rows = call('ZRANGEBYLEX', KEYS[2], '[' .. ARGV[2], '+', 'LIMIT', '0', ARGV[4])
local reply = {'K', #rows > limit and '1' or '0'}
for i = 1, #rows do
  if i > limit then break end
  reply[#reply + 1] = sub(rows[i], 1, 8)
  reply[#reply + 1] = stored_at('h:' .. sub(rows[i], 17, 32), sub(rows[i], 33, 40))
end
return reply
