-- The dedupe entry and how a new commit is reserved and recorded (docs: pipeline, 1.2), shared by
-- reserve_and_record and membership_change.
--
-- A dedupe entry (97 bytes): state1 digest16 message_id16 sent_at8 not_after8 version8 conversation16
-- seq8 activity16; state 2 RECORDED, 4 COMMITTED, 5 REFUSED. What a caller hands over of it is the
-- intent: the 72 bytes between state and seq.
-- A conversation c: is a hash: s = seq8 activity16; v = kind1 version8 digest16 control_seq8; u = the two
-- users of a single chat; o, n, m = creator8, name, meta of a group; h = head; f = hot floor8.
--
-- KEYS: 2 ws: writer shard, 3 wp: pending, 4 wi: order of facts, 5 wa: facts, 6 dx: dedupe index. ARGV: 3 cutoff8 (entries whose
-- not_after is below it are past the dedupe window). Reply: none; defines plan(...) -> the reply of one
-- item, and write_plan(). plan reads and never writes; write_plan writes and can't fail.
-- Uses: compare, successor, rows, overlays
-- allow-file (..): every part but the last has a fixed width, no part is a number

local call, unpack = redis.call, unpack
local RECORDED, COMMITTED, REFUSED = '\2', '\4', '\5'
local NO_OFFSET = '\255\255\255\255\255\255\255\255'
local NOTHING = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'

local cutoff = ARGV[3]
local conversations, taken, touched = {}, {}, {}
local pending, order, facts, index = {}, {}, {}, {}
local commits, rows, laid = {}, {}, {}

local function not_after_of(held) return sub(held, 42, 49) end

local function existing(held, hkey)
  if byte(held, 1) ~= 2 then return 'E' .. held end
  return 'E' .. held .. (taken[held] or stored_at(hkey, sub(held, 74, 81)))
end

local function conversation_of(ckey)
  local conversation = conversations[ckey]
  if not conversation then
    local read = call('HMGET', ckey, 's', 'v')
    conversation = {
      seq = read[1] and sub(read[1], 1, 8) or '\0\0\0\0\0\0\0\0',
      activity = read[1] and sub(read[1], 9, 24) or '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0',
      verdict = read[2] and sub(read[2], 1, 25),
    }
    conversations[ckey] = conversation
  end
  return conversation
end

-- expect = kind1 version8 digest16 as frozen; users = a single chat's users16 (else ''); founding: the
-- conversation may be new. overlay = user8 target8 of an overlay's record (else '' or nil).
local function plan(dkey, ckey, hkey, intent, expect, users, founding, record, overlay)
  local held = taken[dkey] or call('GET', dkey)
  if held and (byte(held, 1) == 2 or not below(not_after_of(held), cutoff)) then
    return existing(held, hkey)
  end
  local conversation = conversation_of(ckey)
  if conversation.verdict ~= expect then
    if conversation.verdict then return 'V' .. sub(conversation.verdict, 2) end
    if not founding then return 'V' .. NOTHING end
    conversation.verdict, conversation.users = expect, users
  end
  local message_id = sub(intent, 17, 32)
  local before = conversation.seq
  local seq, activity = successor(before), greater(message_id, successor(conversation.activity))
  conversation.seq, conversation.activity = seq, activity
  if not conversation.touched then
    conversation.touched = true
    touched[#touched + 1] = ckey
  end
  held = RECORDED .. intent .. seq .. activity
  local n, stored, dedupe = #commits, seq .. activity .. record, sub(dkey, 3)
  commits[n + 1], commits[n + 2] = dkey, held
  rows[n + 1], rows[n + 2] = hkey, stored
  local conversation_id = sub(intent, 57)
  pending[n + 1], pending[n + 2] = '0', conversation_id .. seq .. message_id
  order[n + 1], order[n + 2] = '0', message_id
  facts[n + 1] = message_id
  facts[n + 2] = RECORDED .. '\0' .. NO_OFFSET .. conversation_id .. seq .. dedupe
  index[n + 1], index[n + 2] = '0', sub(intent, 41, 48) .. dedupe
  if overlay and overlay ~= '' then laid[#laid + 1] = {conversation_id, overlay, seq} end
  taken[dkey], taken[held] = held, stored
  return 'F' .. seq .. activity, seq, before
end

local function write_plan()
  for i = 1, #touched do
    local conversation = conversations[touched[i]]
    local position = conversation.seq .. conversation.activity
    if conversation.users then
      call('HSET', touched[i], 's', position, 'u', conversation.users,
        'v', conversation.verdict .. '\0\0\0\0\0\0\0\0')
    else
      call('HSET', touched[i], 's', position)
    end
  end
  for i = 1, #commits, 2 do
    call('SET', commits[i], commits[i + 1])
    call('ZADD', rows[i], '0', rows[i + 1])
  end
  if #commits ~= 0 then
    call('ZADD', KEYS[3], unpack(pending))
    call('ZADD', KEYS[4], unpack(order))
    call('HSET', KEYS[5], unpack(facts))
    call('ZADD', KEYS[6], unpack(index))
  end
  for i = 1, #laid do
    local conversation_id, overlay, seq = laid[i][1], laid[i][2], laid[i][3]
    lay_overlay(conversation_id, overlay, seq)
    call('HSET', 'wo:' .. sub(KEYS[2], 4), conversation_id .. seq, overlay)
  end
end
