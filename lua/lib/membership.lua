-- One step of a group's membership (docs: contract, MembershipVersion and Interval).
--
-- gm:<conversation> is a hash user8 -> slot4 (joined8 left8)*: a user gets one slot for ever, intervals are
-- appended. gv:<conversation> is a hash version8 digest16 -> control_seq8 bitmap: the slots of exactly that
-- version, the lowest slot in the lowest bit of the first byte. Versions are never changed.
--
-- KEYS and ARGV: none of its own. Reply: none; defines change_members(mkey, bitmap, operation, users, before,
-- control) -> the new bitmap. It writes intervals, and can't fail.
-- Uses: compare
-- allow-file (..): every part has a fixed width

local floor, concat = math.floor, table.concat
local FOREVER, FOUNDED = '\255\255\255\255\255\255\255\255', '\0\0\0\0\0\0\0\0'

local function slot_of(held)
  local a, b, c, d = byte(held, 1, 4)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

local function slot_bytes(slot)
  return string.char(floor(slot / 16777216) % 256, floor(slot / 65536) % 256,
    floor(slot / 256) % 256, slot % 256)
end

-- before = the conversation_seq before the control message, control = its own
local function change_members(mkey, bitmap, operation, users, before, control)
  local digits = {}
  for i = 1, #bitmap do digits[i] = byte(bitmap, i) end
  local slots, joining = call('HLEN', mkey), operation == '\1' or operation == '\2'
  local since = operation == '\1' and FOUNDED or before
  for at = 1, #users, 8 do
    local user = sub(users, at, at + 7)
    local held = call('HGET', mkey, user)
    if not held then
      held = slot_bytes(slots)
      slots = slots + 1
    end
    local slot = slot_of(held)
    local place, weight = floor(slot / 8) + 1, 2 ^ (slot % 8)
    for i = #digits + 1, place do digits[i] = 0 end
    local present = floor(digits[place] / weight) % 2 == 1
    if joining and not present then
      digits[place] = digits[place] + weight
      call('HSET', mkey, user, held .. since .. FOREVER)
    elseif present and not joining then
      digits[place] = digits[place] - weight
      call('HSET', mkey, user, sub(held, 1, #held - 8) .. control)
    end
  end
  for i = 1, #digits do digits[i] = string.char(digits[i]) end
  return concat(digits)
end
