-- User-state records in offset order and the state position by compare-and-set, all or nothing (docs: pipeline, 4).
-- Where a value loses against the one that stands (or that an earlier record of this call brings), nothing is
-- written and the position stays: the caller appends the winners again before it passes them.
--
-- KEYS   1 incarnation, 2 ss: session shard, then three a change: sr: st: sx: of its user
-- ARGV   1 incarnation, 2 epoch8, 3 from8, 4 position to (offset8 width1 digest topic), then four a change:
--        conversation16, offset8, read8 or '', order73 flags4 value or ''
-- Reply  K and two a losing change: its index from 0, the value that stands; or R; or F epoch8 (zeros where only the
--        position differs)
-- Uses: compare, guard, states
-- allow-file (..): a key before a fixed-width id

local held = call('HMGET', KEYS[2], 'e', 'u')
local refused = foreign() or refusal(held[1], ARGV[2])
if refused then return refused end
if held[2] ~= false and sub(held[2], 1, 8) ~= ARGV[3] then
  if held[2] == ARGV[4] then return {'K'} end
  return {'F', '\0\0\0\0\0\0\0\0'}
end

local reply, planned, moved = {'K'}, {}, {}
local count = (#KEYS - 2) / 3
for i = 0, count - 1 do
  local rkey, skey, at = KEYS[3 + i * 3], KEYS[4 + i * 3], 5 + i * 4
  local conversation, mark, state = ARGV[at], ARGV[at + 2], ARGV[at + 3]
  local key = mark ~= '' and rkey or skey
  local place = conversation .. key
  local stands = planned[place]
  if stands == nil then stands = call('HGET', key, conversation) end
  if loses(mark, state, stands) then
    reply[#reply + 1] = i
    reply[#reply + 1] = stands
  elseif mark ~= '' then
    moved[i] = not stands or sub(stands, 1, 8) ~= mark
    planned[place] = mark
  else
    moved[i] = stands ~= state
    planned[place] = state
  end
end
if #reply ~= 1 then return reply end

for i = 0, count - 1 do
  if moved[i] then
    local at = 5 + i * 4
    put(KEYS[3 + i * 3], KEYS[4 + i * 3], KEYS[5 + i * 3], ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
  end
end
call('HSET', KEYS[2], 'u', ARGV[4])
return reply
