-- Raise the shard_epoch of a mailbox shard whose dispatch log was lost: W = trim = the predecessor of (new | 0), no
-- days or position, and claims above the old watermark void, since what they claimed was never materialised (docs:
-- pipeline, 7). What stays claimed is claimed at no offset of the new epoch. Floors stay, but above no offset from which
-- fanout has to dispatch again, and by no promise made before: dispatches in the log still carry the f of then. It reads
-- all claims at once: the shard is stopped, and floors keep them few.
--
-- KEYS   1 incarnation, 2 ms: mailbox shard, 3 mc: claims, 4 mx: order of claims
-- ARGV   1 incarnation, 2 epoch8, 3 from8 (the least watermark), 4 to8, 5 offset8 from which claims are void,
--        6 redo offsets (partition4 offset8)*, 7 partition4 of a dispatch without a source, 8 (partition4 f8)* promised
--        at most so far, then two a source partition: partition4, the offset8 of its first record that was not materialised
-- Reply  K and the number of claims voided; or R; or F epoch8 (zeros where only the watermark differs)
-- Uses: compare, guard, successor, watermarks
-- allow-file (..): every part has a fixed width

-- above every offset of a log: materialised under an earlier shard_epoch, wherever it stands now
local EARLIER = '\0\0\255\255\255\255\255\255'

local shard = call('HMGET', KEYS[2], 'e', 'w')
local refused = foreign() or refusal(shard[1], ARGV[2])
if refused then return refused end
if shard[2] == ARGV[4] then return {'K', 0} end
if not shard[2] or least_watermark(shard[2]) ~= ARGV[3] then return {'F', '\0\0\0\0\0\0\0\0'} end

-- below it everything was materialised, by source partition
local settled, order = {}, {}
local function settle(partition, offset)
  local held = settled[partition]
  if not held then order[#order + 1] = partition end
  settled[partition] = held and greater(held, offset) or offset
end

local earlier = call('HGET', KEYS[2], 'b') or call('HGET', KEYS[2], 'r') or ''
for at = 1, #earlier, 12 do settle(sub(earlier, at, at + 3), sub(earlier, at + 4, at + 11)) end
local fields = call('HGETALL', KEYS[2])
for i = 1, #fields, 2 do
  if sub(fields[i], 1, 1) == 'f' then settle(sub(fields[i], 2), fields[i + 1]) end
end
for i = 9, #ARGV, 2 do
  local field = 'f' .. ARGV[i]
  local floor = call('HGET', KEYS[2], field)
  if floor and below(ARGV[i + 1], floor) then call('HSET', KEYS[2], field, ARGV[i + 1]) end
end

local voided, claims = 0, call('HGETALL', KEYS[3])
for i = 1, #claims, 2 do
  local dispatch_id, claim = claims[i], claims[i + 1]
  local offset, partition = sub(claim, 1, 8), sub(claim, 9, 12)
  if offset == EARLIER or below(offset, ARGV[5]) then
    if offset ~= EARLIER then call('HSET', KEYS[3], dispatch_id, EARLIER .. sub(claim, 9)) end
    if partition ~= ARGV[7] then settle(partition, successor(sub(claim, 13, 20))) end
  else
    call('HDEL', KEYS[3], dispatch_id)
    call('ZREM', KEYS[4], sub(claim, 9, 20) .. dispatch_id)
    voided = voided + 1
  end
end
for at = 1, #ARGV[8], 12 do
  call('HSET', KEYS[2], 'g' .. sub(ARGV[8], at, at + 3), sub(ARGV[8], at + 4, at + 11))
end
table.sort(order, below)
local marks = ''
for i = 1, #order do marks = marks .. order[i] .. settled[order[i]] end
call('HDEL', KEYS[2], 'd', 'p')
call('HSET', KEYS[2], 'w', ARGV[4], 't', ARGV[4], 'r', ARGV[6], 'b', marks)
return {'K', voided}
