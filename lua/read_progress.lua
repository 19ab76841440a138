-- DispatchProgress that still stands (auditor). Its absence means nothing: not finished yet, or below a floor.
--
-- KEYS   1 incarnation, 2 mc: claims
-- ARGV   1 incarnation, then each dispatch_id16
-- Reply  K and one a dispatch: offset8 count4 digest of a finished one, '' of any other; or R
-- Uses: compare, guard
-- allow-file (..): a fixed-width offset before the progress

local refused = foreign()
if refused then return refused end
local reply = {'K'}
for i = 2, #ARGV do
  local held = call('HGET', KEYS[2], ARGV[i])
  reply[i] = held and #held ~= 20 and sub(held, 1, 8) .. sub(held, 21) or ''
end
return reply
