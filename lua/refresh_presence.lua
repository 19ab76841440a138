-- Keep entries alive, or write them again after the store lost them (docs: pipeline, 3.6).
--
-- KEYS   1 incarnation, then pr: presence of the user of each hold
-- ARGV   1 '' (any marked keyspace will do), then two a hold: device, the entry (session_epoch8 attempt8 expires8 conn8 gateway)
-- Reply  K and one a hold: '1' a later attempt or a higher session_epoch of the same stands, '0' written; or R
-- Uses: compare, guard
-- allow-file (..): both parts have a fixed width

local refused = unmarked()
if refused then return refused end

-- The device's own attempt decides, then the epoch: a lost tail can bring back the entry of an earlier connection
-- with a higher epoch (made at a gateway whose clock runs ahead), which replaced nobody.
local function age(value) return sub(value, 9, 16) .. sub(value, 1, 8) end

local reply = {'K'}
for key = 2, #KEYS do
  local device, entry = ARGV[2 * key - 2], ARGV[2 * key - 1]
  local held = call('HGET', KEYS[key], device)
  if held and below(age(entry), age(held)) then
    reply[key] = '1'
  else
    call('HSET', KEYS[key], device, entry)
    reply[key] = '0'
  end
end
return reply
