-- Reading history rows: members of h:<conversation> are seq8, activity16, record, in byte order.
--
-- KEYS and ARGV: none of its own. Reply: none; defines stored_at(key, seq) -> the first row of that
-- conversation_seq or ''.
-- Uses: compare
-- allow-file (..): a range mark before a fixed-width value

local function stored_at(key, seq)
  local row = redis.call('ZRANGEBYLEX', key, '[' .. seq, '+', 'LIMIT', '0', '1')[1]
  if row and sub(row, 1, 8) == seq then return row end
  return ''
end
