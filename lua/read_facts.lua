-- CommitAuditFacts in message_id order (auditor).
--
-- KEYS   1 incarnation, 2 wi: order of facts, 3 wa: facts
-- ARGV   1 '' (any marked keyspace will do), 2 lower bound, 3 limit
-- Reply  K, '1' or '0' (more), then message_id16 and fact of each; or R
-- Uses: compare, guard
-- allow-file (tonumber, <): a limit and counts of rows

local refused = unmarked()
if refused then return refused end
local limit = tonumber(ARGV[3])
local ids = call('ZRANGEBYLEX', KEYS[2], ARGV[2], '+', 'LIMIT', '0', limit + 1)
local reply = {'K', #ids > limit and '1' or '0'}
for i = 1, #ids do
  if i > limit then break end
  reply[#reply + 1] = ids[i]
  reply[#reply + 1] = call('HGET', KEYS[3], ids[i])
end
return reply
