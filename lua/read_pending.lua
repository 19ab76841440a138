-- OPEN (e): intents without a confirmed append, in order of conversation and seq.
--
-- KEYS   1 incarnation, 2 ws: writer shard, 3 wp: pending
-- ARGV   1 incarnation, 2 epoch8, 3 lower bound of the range, 4 limit
-- Reply  K, '1' or '0' (more), last member or '', then seq8 activity16 record of each; or R; or F epoch8
-- Uses: compare, guard, rows
-- allow-file (tonumber, <): a limit and counts of rows
-- allow-file (..): a key's prefix before a fixed-width id

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end
local limit = tonumber(ARGV[4])
local members = call('ZRANGEBYLEX', KEYS[3], ARGV[3], '+', 'LIMIT', '0', limit + 1)
local reply = {'K', '0', ''}
if #members > limit then
  reply[2] = '1'
  members[#members] = nil
end
for i = 1, #members do
  local member = members[i]
  reply[3] = member
  reply[3 + i] = stored_at('h:' .. sub(member, 1, 16), sub(member, 17, 24))
end
return reply
