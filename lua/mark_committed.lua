-- Mark a batch of recorded intents COMMITTED and move `applied` (docs: pipeline, 1.4). An absent intent is
-- never upserted: the whole batch is Lost and nothing is written.
--
-- KEYS   1 incarnation, 2 ws: writer shard, 3 wp: pending, 4 wa: facts, 5 ho: order of hot rows, 6 wo: pending
--        overlays, then one d: dedupe an item
-- ARGV   1 incarnation, 2 epoch8, 3 applied_to8, 4 digest16 of the record before it or '', then two an item: conversation16 seq8 message_id16 and the
--        fact as it will stand
-- Reply  K; or L index; or R; or F epoch8
-- Uses: compare, guard
-- allow-file (..): the parts have the width of what they replace

local shard = call('HMGET', KEYS[2], 'e', 'a', 'h')
local refused = foreign() or refusal(shard[1], ARGV[2])
if refused then return refused end

local commits, facts, settled, hot, places = {}, {}, {}, {}, {}
local argument, newest = 5, shard[3] or '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
for key = 7, #KEYS do
  local member = ARGV[argument]
  local message_id = sub(member, 25)
  local held = call('GET', KEYS[key])
  local state = held and sub(held, 18, 33) == message_id and byte(held, 1)
  if state == 2 then
    commits[#commits + 1] = KEYS[key]
    commits[#commits + 1] = '\4' .. sub(held, 2)
    facts[#facts + 1] = message_id
    facts[#facts + 1] = ARGV[argument + 1]
    settled[#settled + 1] = member
    local place = sub(member, 1, 24)
    places[#places + 1] = place
    hot[#hot + 1] = '0'
    hot[#hot + 1] = sub(ARGV[argument + 1], 3, 10) .. sub(held, 34, 41) .. place
  elseif state ~= 4 then
    return {'L', key - 7}
  end
  newest = greater(newest, message_id)
  argument = argument + 2
end

for i = 1, #commits, 2 do call('SET', commits[i], commits[i + 1]) end
if #commits ~= 0 then
  call('HSET', KEYS[4], unpack(facts))
  call('ZREM', KEYS[3], unpack(settled))
  call('ZADD', KEYS[5], unpack(hot))
  call('HDEL', KEYS[6], unpack(places))
end
if not shard[2] or below(shard[2], ARGV[3]) then
  call('HSET', KEYS[2], 'a', ARGV[3], 'f', ARGV[2], 'h', newest, 'd', ARGV[3] .. ARGV[4])
elseif #commits ~= 0 and newest ~= shard[3] then
  call('HSET', KEYS[2], 'h', newest)
end
return {'K'}
