-- Open of a mailbox shard: raise the fence and read all state (docs: pipeline, 3.0). Where no watermark stands
-- and no data either, the shard begins at `initial`; data without its watermark is told and not mended.
--
-- KEYS   1 incarnation, 2 ms: mailbox shard, 3 mc: claims, 4 mx: order of claims, 5 mh: the shard has begun
-- ARGV   1 epoch8, 2 fresh marker for an empty keyspace, 3 opener (see lib/open), 4 initial8
-- Reply  K marker, lost ('1': data without a watermark), then field and value of the shard's hash; or U; or F epoch8
-- Uses: compare, open
-- allow-file (<): counts of keys

local marker, refused = opened()
if refused then return refused end
local lost = '0'
if not call('HGET', KEYS[2], 'w') then
  local traces = call('HMGET', KEYS[2], 't', 'p', 'd')
  if traces[1] or traces[2] or traces[3] or call('EXISTS', KEYS[3], KEYS[4], KEYS[5]) > 0 then
    lost = '1'
  else
    call('SET', KEYS[5], '1')
    call('HSET', KEYS[2], 'w', ARGV[4])
  end
end
local reply, fields = {'K', marker, lost}, call('HGETALL', KEYS[2])
for i = 1, #fields do reply[i + 3] = fields[i] end
return reply
