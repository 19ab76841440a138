-- OPEN (d): restore effective outbox records and move `applied`, one script, idempotent (docs: pipeline, 1.6).
--
-- The effective outbox is the truth: an intent that stands in a record's way (same dedupe key or same seq, another
-- message_id, never outboxed) goes, with its fact, its pending row, its history row and what it laid on another.
--
-- KEYS   1 incarnation, 2 ws: writer shard, 3 wp: pending, 4 wi: order of facts, 5 wa: facts, 6 dx: dedupe index,
--        7 ho: order of hot rows, 8 wo: pending overlays,
--        then five a record: d: dedupe, c: conversation, h: history, gm: members, gv: versions
-- ARGV   1 incarnation, 2 epoch8, 3 cutoff8 of the dedupe window, 4 applied_from8, 5 applied_to8, 6 filter8,
--        7 the run_id for which the shard is whole from now on, or '', 8 digest16 of the record before applied_to
--        or '', then sixteen a record: intent72, seq8 activity16, stored, conversation16 seq8 message_id16, fact, kind1,
--        users16 or '', previous version8 ('' no membership), seq8 before, operation1, kind1 version8 digest16, users,
--        creator8, name, meta, user8 target8 of an overlay (user 0: a recall) or ''
-- Reply  K; or R (also when `applied` stands below applied_from); or F epoch8; or X: a version before is missing
-- Uses: compare, guard, rows, overlays, membership
-- allow-file (..): every part but the last has a fixed width

local shard = call('HMGET', KEYS[2], 'e', 'a', 'h', 'v')
local refused = foreign() or refusal(shard[1], ARGV[2])
if refused then return refused end
local ZERO = '\0\0\0\0\0\0\0\0'
local applied, covered = shard[2] or ZERO, shard[4] or ZERO
if below(applied, ARGV[4]) then return {'R'} end
local function tell_whole()
  if ARGV[7] ~= '' then call('HSET', KEYS[2], 'o', ARGV[7]) end
end
if not below(applied, ARGV[5]) then
  -- What stands before `applied` is told anew where an operator filled up a log that had lost it: the record, and the barriers.
  if applied == ARGV[5] and ARGV[8] ~= '' then
    call('HSET', KEYS[2], 'f', ARGV[6], 'd', ARGV[5] .. ARGV[8])
  end
  tell_whole()
  return {'K'}
end

local FIELDS = 16
local HIGHEST = '\255\255\255\255\255\255\255\255\255\255\255\255\255\255\255\255'

-- The name (version8 digest16) of a previous version; its digest isn't in the record.
local function name_of(ckey, vkey, version)
  local held = call('HGET', ckey, 'v')
  if held and sub(held, 2, 9) == version then return sub(held, 2, 25) end
  local names = call('HKEYS', vkey)
  for i = 1, #names do
    if sub(names[i], 1, 8) == version then return names[i] end
  end
  return nil
end

local function check()
  local made = {}
  local argument = 9
  for key = 9, #KEYS, 5 do
    local previous = ARGV[argument + 7]
    if previous ~= '' then
      local named = KEYS[key + 4]
      local founding = ARGV[argument + 9] == '\1'
      if not founding and not made[named .. previous] and not name_of(KEYS[key + 1], named, previous) then
        return false
      end
      made[named .. sub(ARGV[argument + 10], 2, 9)] = true
    end
    argument = argument + FIELDS
  end
  return true
end

local function drop_intent(member, hkey)
  local message_id = sub(member, 25)
  local fact = call('HGET', KEYS[5], message_id)
  local row = stored_at(hkey, sub(member, 17, 24))
  call('ZREM', KEYS[3], member)
  if row ~= '' then call('ZREM', hkey, row) end
  call('HDEL', KEYS[5], message_id)
  call('ZREM', KEYS[4], message_id)
  local place = sub(member, 1, 24)
  local overlay = call('HGET', KEYS[8], place)
  if overlay then
    lift_overlay(sub(place, 1, 16), overlay, sub(place, 17))
    call('HDEL', KEYS[8], place)
  end
  if fact then
    local dkey = 'd:' .. sub(fact, 35)
    local held = call('GET', dkey)
    if held and sub(held, 18, 33) == message_id then call('DEL', dkey) end
  end
end

local function restore_dedupe(dkey, intent, coordinates)
  local held = call('GET', dkey)
  local message_id, not_after = sub(intent, 17, 32), sub(intent, 41, 48)
  if held and sub(held, 18, 33) ~= message_id then
    if byte(held, 1) == 2 then
      drop_intent(sub(held, 58, 81) .. sub(held, 18, 33), 'h:' .. sub(held, 58, 73))
      held = false
    elseif below(message_id, sub(held, 18, 33)) then
      return
    end
  end
  if not held and below(not_after, ARGV[3]) then return end
  call('SET', dkey, '\4' .. intent .. coordinates)
  call('ZADD', KEYS[6], '0', not_after .. sub(dkey, 3))
end

local function restore_conversation(ckey, kind, users, coordinates)
  local held = call('HMGET', ckey, 's', 'v')
  if held[1] then
    coordinates = greater(sub(held[1], 1, 8), sub(coordinates, 1, 8))
      .. greater(sub(held[1], 9, 24), sub(coordinates, 9, 24))
  end
  if coordinates ~= held[1] then call('HSET', ckey, 's', coordinates) end
  if users ~= '' and not held[2] then
    call('HSET', ckey, 'u', users,
      'v', kind .. ZERO .. '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' .. ZERO)
  end
end

local function restore_membership(key, argument, seq)
  local after, vkey = ARGV[argument + 10], KEYS[key + 4]
  local name, operation = sub(after, 2), ARGV[argument + 9]
  if call('HGET', vkey, name) then return end
  local bitmap = ''
  if operation ~= '\1' then
    bitmap = sub(call('HGET', vkey, name_of(KEYS[key + 1], vkey, ARGV[argument + 7])), 9)
  end
  bitmap = change_members(KEYS[key + 3], bitmap, operation, ARGV[argument + 11], ARGV[argument + 8], seq)
  call('HSET', vkey, name, seq .. bitmap)
  local held = call('HGET', KEYS[key + 1], 'v')
  if not held or not below(sub(after, 2, 9), sub(held, 2, 9)) then
    call('HSET', KEYS[key + 1], 'v', after .. seq)
  end
  if operation == '\1' then
    call('HSET', KEYS[key + 1], 'o', ARGV[argument + 12], 'n', ARGV[argument + 13],
      'm', ARGV[argument + 14])
  end
end

local function restore_fact(member, fact)
  local message_id = sub(member, 25)
  local held = call('HGET', KEYS[5], message_id)
  -- a fact that was written when its record was RECORDED stays evidence; behind the CoverageCursor none is needed
  if held then
    call('HSET', KEYS[5], message_id, '\4' .. sub(held, 2, 2) .. sub(fact, 3))
  elseif not below(sub(fact, 3, 10), covered) then
    call('HSET', KEYS[5], message_id, fact)
    call('ZADD', KEYS[4], '0', message_id)
  end
end

local function restore(key, argument)
  local intent, coordinates = ARGV[argument], ARGV[argument + 1]
  local member, seq = ARGV[argument + 3], sub(coordinates, 1, 8)
  local place = sub(member, 1, 24)
  local intents = call('ZRANGEBYLEX', KEYS[3], '[' .. place, '[' .. place .. HIGHEST)
  for i = 1, #intents do
    if intents[i] ~= member then drop_intent(intents[i], KEYS[key + 2]) end
  end
  restore_dedupe(KEYS[key], intent, coordinates)
  call('ZADD', KEYS[key + 2], '0', ARGV[argument + 2])
  call('ZREM', KEYS[3], member)
  local fact, overlay = ARGV[argument + 4], ARGV[argument + 15]
  call('ZADD', KEYS[7], '0', sub(fact, 3, 10) .. sub(intent, 33, 40) .. place)
  call('HDEL', KEYS[8], place)
  if overlay ~= '' then lay_overlay(sub(place, 1, 16), overlay, seq) end
  restore_conversation(KEYS[key + 1], ARGV[argument + 5], ARGV[argument + 6], coordinates)
  if ARGV[argument + 7] ~= '' then restore_membership(key, argument, seq) end
  restore_fact(member, fact)
  return sub(member, 25)
end

if not check() then return {'X'} end
local newest = shard[3] or '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
local argument = 9
for key = 9, #KEYS, 5 do
  newest = greater(newest, restore(key, argument))
  argument = argument + FIELDS
end
call('HSET', KEYS[2], 'a', ARGV[5], 'f', ARGV[6], 'h', newest, 'd', ARGV[5] .. ARGV[8])
tell_whole()
return {'K'}
