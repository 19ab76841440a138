-- The log named the record itself (docs: pipeline, 1.5): the intent is REFUSED, out of pending and history;
-- what it laid on another row is lifted.
--
-- KEYS   1 incarnation, 2 ws: writer shard, 3 wp: pending, 4 wa: facts, 5 wo: pending overlays, then two an item:
--        d: dedupe, h: history
-- ARGV   1 incarnation, 2 epoch8, then two an item: conversation16 seq8 message_id16 and the fact as it will stand
-- Reply  K; or L index: no intent with this message_id, nothing was written; or R; or F epoch8
-- Uses: compare, guard, rows, overlays
-- allow-file (..): the parts have the width of what they replace

local shard = call('HMGET', KEYS[2], 'e', 'h')
local refused = foreign() or refusal(shard[1], ARGV[2])
if refused then return refused end
local NONE = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
local newest = shard[2] or NONE

local found, item = {}, 0
for key = 6, #KEYS, 2 do
  local held = call('GET', KEYS[key])
  local state = held and sub(held, 18, 33) == sub(ARGV[3 + 2 * item], 25) and byte(held, 1)
  if state ~= 2 and state ~= 5 then return {'L', item} end
  item = item + 1
  found[item] = state == 2 and held
end
for i = 1, item do
  local held = found[i]
  if held then
    local key, member = 4 + 2 * i, ARGV[1 + 2 * i]
    local place = sub(member, 1, 24)
    local overlay = call('HGET', KEYS[5], place)
    if overlay then
      lift_overlay(sub(place, 1, 16), overlay, sub(place, 17))
      call('HDEL', KEYS[5], place)
    end
    local row = stored_at(KEYS[key + 1], sub(held, 74, 81))
    if row ~= '' then call('ZREM', KEYS[key + 1], row) end
    call('SET', KEYS[key], '\5' .. sub(held, 2))
    call('HSET', KEYS[4], sub(member, 25), ARGV[2 + 2 * i])
    call('ZREM', KEYS[3], member)
    newest = greater(newest, sub(member, 25))
  end
end
if newest ~= shard[2] and newest ~= NONE then call('HSET', KEYS[2], 'h', newest) end
return {'K'}
