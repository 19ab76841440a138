-- Raise the shard_epoch of a mailbox shard whose dispatch log was lost: W = trim = the predecessor of (new | 0), no floors,
-- days or position, and claims above the old watermark void, since what they claimed was never materialised (docs:
-- pipeline, 7). It reads all claims at once: the shard is stopped, and floors keep them few.
--
-- KEYS   1 incarnation, 2 ms: mailbox shard, 3 mc: claims, 4 mx: order of claims
-- ARGV   1 incarnation, 2 epoch8, 3 from8 (the least watermark), 4 to8, 5 offset8 from which claims are void,
--        6 redo offsets (partition4 offset8)*
-- Reply  K and the number of claims voided; or R; or F epoch8 (zeros where only the watermark differs)
-- Uses: compare, guard, watermarks
-- allow-file (..): every part has a fixed width

local shard = call('HMGET', KEYS[2], 'e', 'w')
local refused = foreign() or refusal(shard[1], ARGV[2])
if refused then return refused end
if shard[2] == ARGV[4] then return {'K', 0} end
if not shard[2] or least_watermark(shard[2]) ~= ARGV[3] then return {'F', '\0\0\0\0\0\0\0\0'} end

local fields = call('HKEYS', KEYS[2])
for i = 1, #fields do
  if sub(fields[i], 1, 1) == 'f' then call('HDEL', KEYS[2], fields[i]) end
end
local voided, claims = 0, call('HGETALL', KEYS[3])
for i = 1, #claims, 2 do
  local dispatch_id, claim = claims[i], claims[i + 1]
  if not below(sub(claim, 1, 8), ARGV[5]) then
    call('HDEL', KEYS[3], dispatch_id)
    call('ZREM', KEYS[4], sub(claim, 9, 20) .. dispatch_id)
    voided = voided + 1
  end
end
call('HDEL', KEYS[2], 'd', 'p')
call('HSET', KEYS[2], 'w', ARGV[4], 't', ARGV[4], 'r', ARGV[6])
return {'K', voided}
