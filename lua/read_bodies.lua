-- Stored records by conversation and seq: content-addressed, so no fence; the caller compares the message_id.
--
-- KEYS   1 incarnation, then h: history of each
-- ARGV   1 '' (any marked keyspace will do), then seq8 of each
-- Reply  K and one array a name: the rows at that seq (more than one only after a reused seq); or R
-- Uses: compare, guard
-- allow-file (..): a range mark before a fixed-width value

local refused = unmarked()
if refused then return refused end
local reply = {'K'}
for key = 2, #KEYS do
  local seq = ARGV[key]
  local rows = call('ZRANGEBYLEX', KEYS[key], '[' .. seq, '+', 'LIMIT', '0', '2')
  for i = #rows, 1, -1 do
    if sub(rows[i], 1, 8) ~= seq then rows[i] = nil end
  end
  reply[key] = rows
end
return reply
