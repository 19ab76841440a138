-- Reserve and record a batch of new commits in one script: dedupe, version still V, next seq, activity,
-- intent, history, pending index, overlay, fact (docs: pipeline, 1.2). One item's verdict never spoils another's.
--
-- KEYS   1 incarnation, 2 ws: writer shard, 3 wp: pending, 4 wi: order of facts, 5 wa: facts, 6 dx: dedupe index,
--        then three an item: d: dedupe, c: conversation, h: history
-- ARGV   1 incarnation, 2 epoch8, 3 cutoff8 of the dedupe window, 4 dedupe entries to drop at most,
--        then five an item: intent72, kind1 version8 digest16, users16 of a single chat or '', record, user8
--        target8 of an overlay (user 0: a recall) or ''
-- Reply  K and one an item: F seq8 activity16 | E entry97 stored | V version8 digest16; or R; or F epoch8
-- Uses: compare, successor, guard, rows, overlays, commit
-- allow-file (..): a key's prefix before a fixed-width id

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end

local reply = {'K'}
local argument = 5
for key = 7, #KEYS, 3 do
  local users = ARGV[argument + 2]
  reply[#reply + 1] = plan(KEYS[key], KEYS[key + 1], KEYS[key + 2], ARGV[argument],
    ARGV[argument + 1], users, users ~= '', ARGV[argument + 3], ARGV[argument + 4])
  argument = argument + 5
end

-- Key expiry would need the server's clock; instead each reserve drops a few entries past the window. An
-- index row whose entry was replaced by a later one with the same key goes alone.
local stale = call('ZRANGEBYLEX', KEYS[6], '-', '(' .. cutoff, 'LIMIT', '0', ARGV[4])
for i = 1, #stale do
  local dkey = 'd:' .. sub(stale[i], 9)
  local held = call('GET', dkey)
  local same = held and not_after_of(held) == sub(stale[i], 1, 8)
  if not same or byte(held, 1) ~= 2 then
    call('ZREM', KEYS[6], stale[i])
    if same then call('DEL', dkey) end
  end
end
write_plan()
return reply
