-- Raise trim and drop the mailboxes of the leading day range, a bounded number a call (docs: pipeline, 3.4). Trim
-- never exceeds the least watermark; asked for more, nothing is done and the reply's trim says so.
--
-- KEYS   1 incarnation, 2 ms: mailbox shard, 3 mu: users of the day
-- ARGV   1 incarnation, 2 epoch8, 3 day4, 4 to8, 5 limit, 6 prefix of the mailbox keys (mb: shard4 day4)
-- Reply  K trim8, '1' or '0' (more); or R; or F epoch8
-- Uses: compare, guard, watermarks
-- allow-file (tonumber, <): a limit and counts of rows
-- allow-file (..): a key's fixed-width prefix before its last part

local shard = call('HMGET', KEYS[2], 'e', 'w', 't', 'd')
local refused = foreign() or refusal(shard[1], ARGV[2])
if refused then return refused end
local trim, to, days = shard[3], ARGV[4], shard[4] or ''
if not shard[2] or below(least_watermark(shard[2]), to) then
  return {'K', trim or '\0\0\0\0\0\0\0\0', '0'}
end
if not trim or below(trim, to) then
  trim = to
  call('HSET', KEYS[2], 't', trim)
end
local limit = tonumber(ARGV[5])
local users = call('ZRANGEBYLEX', KEYS[3], '-', '+', 'LIMIT', '0', limit + 1)
for i = 1, #users do
  if i > limit then return {'K', trim, '1'} end
  call('DEL', ARGV[6] .. users[i])
  call('ZREM', KEYS[3], users[i])
end
if sub(days, 1, 4) == ARGV[3] then call('HSET', KEYS[2], 'd', sub(days, 13)) end
return {'K', trim, '0'}
