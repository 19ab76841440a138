-- Reserve and record a membership control message, and the version it makes, in one script (docs: pipeline,
-- 1.9). An interval begins at the seq before the control message and ends at the control message's own.
--
-- KEYS   1 incarnation, 2 ws: writer shard, 3 wp: pending, 4 wi: order of facts, 5 wa: facts, 6 dx: dedupe index,
--        7 d: dedupe, 8 c: conversation, 9 h: history, 10 gm: members, 11 gv: versions
-- ARGV   1 incarnation, 2 epoch8, 3 cutoff8 of the dedupe window, 4 intent72, 5 kind1 version8 digest16 before,
--        6 record, 7 operation1, 8 kind1 version8 digest16 after, 9 users (8 bytes each), 10 creator8, 11 name,
--        12 meta
-- Reply  K and F seq8 activity16 | E entry97 stored | V version8 digest16; or R; or F epoch8; or X: the version
--        before is not in this store
-- Uses: compare, successor, guard, rows, overlays, commit, membership
-- allow-file (..): every part has a fixed width

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end

local creating = ARGV[7] == '\1'
local verdict, seq, before = plan(KEYS[7], KEYS[8], KEYS[9], ARGV[4], ARGV[5], nil, creating, ARGV[6])
if not seq then return {'K', verdict} end
local bitmap = ''
if not creating then
  local held = call('HGET', KEYS[11], sub(ARGV[5], 2))
  if not held then return {'X'} end
  bitmap = sub(held, 9)
end

write_plan()
bitmap = change_members(KEYS[10], bitmap, ARGV[7], ARGV[9], before, seq)
call('HSET', KEYS[11], sub(ARGV[8], 2), seq .. bitmap)
call('HSET', KEYS[8], 'v', ARGV[8] .. seq)
if creating then call('HSET', KEYS[8], 'o', ARGV[10], 'n', ARGV[11], 'm', ARGV[12]) end
return {'K', verdict}
