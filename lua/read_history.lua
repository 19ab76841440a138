-- Hot rows of a conversation between two seqs, without those still pending: visible means OUTBOXED.
--
-- KEYS   1 incarnation, 2 ws: writer shard, 3 wp: pending, 4 h: history, 5 c: conversation
-- ARGV   1 incarnation, 2 epoch8, 3 lower bound, 4 upper bound, 5 '1' newest first, 6 limit, 7 conversation16
-- Reply  K, '1' or '0' (more), hot floor8 or '', then seq8 activity16 record of each; or R; or F epoch8
-- Uses: compare, guard
-- allow-file (tonumber, <): a limit and counts of rows
-- allow-file (..): range marks before fixed-width values

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end

-- the same range in the pending index, whose members begin with the conversation
local conversation = ARGV[7]
local high = ARGV[4] == '+' and '\255\255\255\255\255\255\255\255\255' or sub(ARGV[4], 2)
local intents = call('ZRANGEBYLEX', KEYS[3], '[' .. conversation .. sub(ARGV[3], 2),
  '(' .. conversation .. high)
local pending = {}
for i = 1, #intents do pending[sub(intents[i], 17, 24)] = true end

local limit = tonumber(ARGV[6])
local rows
if ARGV[5] == '1' then
  rows = call('ZREVRANGEBYLEX', KEYS[4], ARGV[4], ARGV[3], 'LIMIT', '0', limit + 1 + #intents)
else
  rows = call('ZRANGEBYLEX', KEYS[4], ARGV[3], ARGV[4], 'LIMIT', '0', limit + 1 + #intents)
end
local reply = {'K', '0', call('HGET', KEYS[5], 'f') or ''}
for i = 1, #rows do
  if not pending[sub(rows[i], 1, 8)] then
    if limit == 0 then
      reply[2] = '1'
      return reply
    end
    reply[#reply + 1] = rows[i]
    limit = limit - 1
  end
end
return reply
