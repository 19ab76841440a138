-- What the hot store shows of conversations to one user each: rows between two seqs at or above the hot floor,
-- without those still pending (visible means OUTBOXED), the user's intervals, and the overlays on those rows.
--
-- KEYS   1 incarnation, 2 ws: writer shard, 3 wp: pending, 4 wo: pending overlays, then five an item: h: history,
--        c: conversation, gm: members, ov: recalls, od: delete-for-me
-- ARGV   1 incarnation, 2 epoch8, 3 bytes of rows at most, then seven an item: conversation16, lower bound, upper
--        bound, '1' newest first, limit, user8 or '', seq8 of each row whose overlays are asked besides
-- Reply  K and one array an item: '1' or '0' (more), hot floor8 or '', kind1 version8 digest16 control_seq8 or '',
--        users16 or '', creator8 or '', slot4 (joined8 left8)* or '', seq8 of the recalled, seq8 of the deleted, then
--        seq8 activity16 record of each; or R; or F epoch8
-- Uses: compare, guard, overlays
-- allow-file (tonumber, <): a limit, counts of rows and of bytes
-- allow-file (..): range marks before fixed-width values, fixed-width seqs in a row

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end
local room, given = tonumber(ARGV[3]), 0

-- the same range in the pending index, whose members begin with the conversation
local function pending_in(conversation, lower, upper)
  local high = upper == '+' and '\255\255\255\255\255\255\255\255\255' or sub(upper, 2)
  local intents = call('ZRANGEBYLEX', KEYS[3], '[' .. conversation .. sub(lower, 2),
    '(' .. conversation .. high)
  local pending = {}
  for i = 1, #intents do pending[sub(intents[i], 17, 24)] = true end
  return pending, #intents
end

local function take_rows(reply, key, argument)
  local lower, upper, limit = ARGV[argument + 1], ARGV[argument + 2], tonumber(ARGV[argument + 4])
  local floor = reply[2]
  if floor ~= '' and below(sub(lower, 2), floor) then lower = '[' .. floor end
  local pending, count = pending_in(ARGV[argument], lower, upper)
  local rows
  if ARGV[argument + 3] == '1' then
    rows = call('ZREVRANGEBYLEX', KEYS[key], upper, lower, 'LIMIT', '0', limit + 1 + count)
  else
    rows = call('ZRANGEBYLEX', KEYS[key], lower, upper, 'LIMIT', '0', limit + 1 + count)
  end
  local seqs = {}
  for i = 1, #rows do
    local seq = sub(rows[i], 1, 8)
    if not pending[seq] then
      if #seqs == limit or (given > 0 and room < #rows[i]) then
        reply[1] = '1'
        return seqs
      end
      room, given = room - #rows[i], given + 1
      seqs[#seqs + 1] = seq
      reply[8 + #seqs] = rows[i]
    end
  end
  return seqs
end

local function overlaid(key, prefix, seqs, conversation)
  if #seqs == 0 then return '' end
  local fields = {}
  for i = 1, #seqs do fields[i] = prefix .. seqs[i] end
  local held, found = call('HMGET', key, unpack(fields)), ''
  for i = 1, #seqs do
    if overlay_counts(KEYS[4], conversation, held[i]) ~= '' then found = found .. seqs[i] end
  end
  return found
end

local reply = {'K'}
local argument = 4
for key = 5, #KEYS, 5 do
  local conversation, user, judged = ARGV[argument], ARGV[argument + 5], ARGV[argument + 6]
  local held = call('HMGET', KEYS[key + 1], 'f', 'v', 'u', 'o')
  local intervals = user ~= '' and call('HGET', KEYS[key + 2], user)
  local page = {'0', held[1] or '', held[2] or '', held[3] or '', held[4] or '', intervals or '', '', ''}
  local seqs = take_rows(page, key, argument)
  for at = 1, #judged, 8 do seqs[#seqs + 1] = sub(judged, at, at + 7) end
  page[7] = overlaid(KEYS[key + 3], '', seqs, conversation)
  if user ~= '' then page[8] = overlaid(KEYS[key + 4], user, seqs, conversation) end
  reply[#reply + 1] = page
  argument = argument + 7
end
return reply
