-- Read marks and states of a user, in the order of their last changes (docs: pipeline, 4).
--
-- KEYS   1 incarnation, 2 sx: order of changes, 3 sr: read marks, 4 st: states
-- ARGV   1 incarnation, 2 range start, 3 one more than wanted
-- Reply  K and three a conversation: offset8 conversation16, read8 offset8, order73 flags4 value or ''; or R
-- Uses: compare, guard

local refused = foreign()
if refused then return refused end
local reply = {'K'}
local rows = call('ZRANGEBYLEX', KEYS[2], ARGV[2], '+', 'LIMIT', '0', ARGV[3])
for i = 1, #rows do
  local conversation = sub(rows[i], 9, 24)
  reply[#reply + 1] = rows[i]
  reply[#reply + 1] = call('HGET', KEYS[3], conversation) or ''
  reply[#reply + 1] = call('HGET', KEYS[4], conversation) or ''
end
return reply
