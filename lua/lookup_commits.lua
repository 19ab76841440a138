-- What stands under dedupe keys.
--
-- KEYS   1 incarnation, 2 ws: writer shard, then d: dedupe of each
-- ARGV   1 incarnation, 2 epoch8, 3 cutoff8 of the dedupe window
-- Reply  K and one a key: entry97, with the stored record behind it while RECORDED, or '' (nothing, or past the
--        window); or R; or F epoch8
-- Uses: compare, guard, rows
-- allow-file (..): a key's prefix before a fixed-width id, a record behind a fixed-width entry

local refused = foreign() or refusal(call('HGET', KEYS[2], 'e'), ARGV[2])
if refused then return refused end
local reply = {'K'}
for key = 3, #KEYS do
  local held = call('GET', KEYS[key]) or ''
  if held ~= '' then
    if byte(held, 1) == 2 then
      held = held .. stored_at('h:' .. sub(held, 58, 73), sub(held, 74, 81))
    elseif below(sub(held, 42, 49), ARGV[3]) then
      held = ''
    end
  end
  reply[#reply + 1] = held
end
return reply
