-- How far devices have the mailbox, as the cursors they showed prove: only forward (docs: pipeline, 4).
--
-- KEYS   1 incarnation, then dv: delivered watermarks of the user, one an item
-- ARGV   1 incarnation, then two an item: device, seq8
-- Reply  K; or R
-- Uses: compare, guard

local refused = foreign()
if refused then return refused end
for key = 2, #KEYS do
  local device, seq = ARGV[key * 2 - 2], ARGV[key * 2 - 1]
  local held = call('HGET', KEYS[key], device)
  if not held or below(held, seq) then call('HSET', KEYS[key], device, seq) end
end
return {'K'}
