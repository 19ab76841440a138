-- Record the first offset of each dispatch_id (docs: pipeline, 3.1). Below the floor of its source partition a
-- dispatch is a duplicate whose claim is gone.
--
-- KEYS   1 incarnation, 2 ms: mailbox shard, 3 mc: claims, 4 mx: order of claims
-- ARGV   1 incarnation, 2 epoch8, then three a claim: dispatch_id16, offset8 partition4 source_offset8, and '' where the
--        dispatch has no source, else the floor's field 'f' partition4
-- Reply  K and one a claim: offset8 digest ('' not finished), or '' below the floor; or R; or F epoch8
-- Uses: compare, guard
-- allow-file (..): every part has a fixed width

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end

local reply, floors, taken = {'K'}, {}, {}
local claims, order = {}, {}
for i = 3, #ARGV, 3 do
  local dispatch_id, claim, field = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local floor = nil
  if field ~= '' then
    floor = floors[field]
    if floor == nil then
      floor = call('HGET', KEYS[2], field)
      floors[field] = floor
    end
  end
  local verdict
  if floor and below(sub(claim, 13), floor) then
    verdict = ''
  else
    local held = taken[dispatch_id] or call('HGET', KEYS[3], dispatch_id)
    if not held then
      held = claim
      claims[#claims + 1], taken[dispatch_id] = dispatch_id, claim
      claims[#claims + 1] = claim
      if field ~= '' then
        order[#order + 1] = '0'
        order[#order + 1] = sub(claim, 9) .. dispatch_id
      end
    end
    verdict = sub(held, 1, 8) .. sub(held, 25)
  end
  reply[#reply + 1] = verdict
end

if #claims ~= 0 then call('HSET', KEYS[3], unpack(claims)) end
if #order ~= 0 then call('ZADD', KEYS[4], unpack(order)) end
return reply
