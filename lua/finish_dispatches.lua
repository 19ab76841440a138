-- DispatchProgress (docs: pipeline, 3.2): marks only; a digest that stands is never replaced.
--
-- KEYS   1 incarnation, 2 ms: mailbox shard, 3 mc: claims
-- ARGV   1 incarnation, 2 epoch8, then three an item: dispatch_id16, offset8, count4 digest
-- Reply  K and the index of each item whose stored digest differs; or R; or F epoch8
-- Uses: compare, guard
-- allow-file (..): a fixed-width claim before its progress

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end
local reply = {'K'}
for i = 3, #ARGV, 3 do
  local held = call('HGET', KEYS[3], ARGV[i])
  -- a claim that is gone lies below the floor, one at another offset is the first's, not this one's
  if held and sub(held, 1, 8) == ARGV[i + 1] then
    if #held == 20 then
      call('HSET', KEYS[3], ARGV[i], held .. ARGV[i + 2])
    elseif sub(held, 25) ~= sub(ARGV[i + 2], 5) then
      reply[#reply + 1] = (i - 3) / 3
    end
  end
end
return reply
