-- OPEN: put back what the archive keeps of conversations whose records the outbox no longer holds, and move `applied`
-- with the last page (docs: pipeline, 1.8). Idempotent and only forward: what stands newer stays.
--
-- A conversation's members come with their index; in an empty store that index is the slot, and bitmaps fit as they are.
--
-- KEYS   1 incarnation, 2 ws: writer shard, then three a conversation: c: conversation, gm: members, gv: versions
-- ARGV   1 incarnation, 2 epoch8, 3 applied_to8 or '', then ten a conversation: conversation16, seq8 activity16,
--        users16 of a single chat or '', kind1 version8 digest16 control_seq8 of the latest version or '',
--        (version8 digest16 control_seq8 width4 bitmap)*, (user8 width4 (joined8 left8)*)*, creator8, name, meta,
--        (user8 target8 overlay_seq8)*
-- Reply  K; or R; or F epoch8
-- Uses: compare, successor, guard, overlays
-- allow-file (..): every part has a fixed width
-- allow-file (<): indexes and widths are numbers

local floor, char, concat = math.floor, string.char, table.concat
local FIELDS = 10
local shard = call('HMGET', KEYS[2], 'e', 'a', 'h')
local refused = foreign() or refusal(shard[1], ARGV[2])
if refused then return refused end

local function number_at(bytes, at)
  local a, b, c, d = byte(bytes, at, at + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

local function slot_bytes(slot)
  return char(floor(slot / 16777216) % 256, floor(slot / 65536) % 256, floor(slot / 256) % 256, slot % 256)
end

-- where each of everyone sits; `moved` once any slot is not the index
local function seat(mkey, everyone, newer)
  local slots, count, moved = {}, call('HLEN', mkey), false
  local at = 1
  while at <= #everyone do
    local user, width = sub(everyone, at, at + 7), number_at(everyone, at + 8)
    local intervals = sub(everyone, at + 12, at + 11 + width)
    local held = call('HGET', mkey, user)
    local slot = count
    if held then
      slot = number_at(held, 1)
    else
      count = count + 1
    end
    if not held or not newer then call('HSET', mkey, user, slot_bytes(slot) .. intervals) end
    if slot ~= #slots then moved = true end
    slots[#slots + 1] = slot
    at = at + 12 + width
  end
  return slots, moved
end

local function seated(bitmap, slots)
  local digits, places = {}, 0
  for index = 0, #slots - 1 do
    local own = byte(bitmap, floor(index / 8) + 1)
    if own and floor(own / 2 ^ (index % 8)) % 2 == 1 then
      local slot = slots[index + 1]
      local place = floor(slot / 8) + 1
      digits[place] = (digits[place] or 0) + 2 ^ (slot % 8)
      if places < place then places = place end
    end
  end
  for i = 1, places do digits[i] = char(digits[i] or 0) end
  return concat(digits)
end

local function restore_members(key, argument, held)
  local latest, versions = ARGV[argument + 3], ARGV[argument + 4]
  local newer = held and below(sub(latest, 2, 9), sub(held, 2, 9))
  local slots, moved = seat(KEYS[key + 1], ARGV[argument + 5], newer)
  local at = 1
  while at <= #versions do
    local name, width = sub(versions, at, at + 23), number_at(versions, at + 32)
    local bitmap = sub(versions, at + 36, at + 35 + width)
    if moved then bitmap = seated(bitmap, slots) end
    call('HSETNX', KEYS[key + 2], name, sub(versions, at + 24, at + 31) .. bitmap)
    at = at + 36 + width
  end
  if not newer then
    call('HSET', KEYS[key], 'v', latest, 'o', ARGV[argument + 6], 'n', ARGV[argument + 7],
      'm', ARGV[argument + 8])
  end
end

local function restore(key, argument, above)
  local ckey, seq = KEYS[key], sub(ARGV[argument + 1], 1, 8)
  local activity, users = sub(ARGV[argument + 1], 9, 24), ARGV[argument + 2]
  local held = call('HMGET', ckey, 's', 'v', 'f')
  if held[1] then
    seq = greater(seq, sub(held[1], 1, 8))
    activity = greater(activity, sub(held[1], 9, 24))
  end
  call('HSET', ckey, 's', seq .. activity, 'f', held[3] and greater(held[3], above) or above)
  if users ~= '' then
    if not held[2] then call('HSET', ckey, 'u', users, 'v', ARGV[argument + 3]) end
  elseif ARGV[argument + 3] ~= '' then
    restore_members(key, argument, held[2])
  end
  local overlays = ARGV[argument + 9]
  for at = 1, #overlays, 24 do
    lay_overlay(ARGV[argument], sub(overlays, at, at + 15), sub(overlays, at + 16, at + 23))
  end
end

local above, newest = {}, shard[3] or '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
for argument = 4, #ARGV, FIELDS do
  above[argument] = successor(sub(ARGV[argument + 1], 1, 8))
  newest = greater(newest, sub(ARGV[argument + 1], 9, 24))
end
local key = 3
for argument = 4, #ARGV, FIELDS do
  restore(key, argument, above[argument])
  key = key + 3
end
if newest ~= shard[3] then call('HSET', KEYS[2], 'h', newest) end
if ARGV[3] ~= '' and (not shard[2] or below(shard[2], ARGV[3])) then
  call('HSET', KEYS[2], 'a', ARGV[3])
end
return {'K'}
