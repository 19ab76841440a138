-- A device comes online: assign its session_epoch, write its entry, return the one it replaces (docs: pipeline,
-- 3.6). The caller's own earlier try is no replaced entry.
--
-- KEYS   1 incarnation, 2 pr: presence of the user
-- ARGV   1 '' (any marked keyspace will do), 2 device, 3 attempt8, 4 expires8, 5 conn8 gateway, 6 wall session_epoch8, 7 now8,
--        8 stale8: entries that expired before are dropped
-- Reply  K session_epoch8, replaced entry or ''; or N: a live entry holds a higher attempt; or R
-- Uses: compare, successor, guard
-- allow-file (..): every part but the last has a fixed width

local refused = unmarked()
if refused then return refused end

-- An entry: session_epoch8 attempt8 expires8 conn8 gateway
local entries = call('HGETALL', KEYS[2])
local held, stale = '', {}
for i = 1, #entries, 2 do
  if entries[i] == ARGV[2] then
    held = entries[i + 1]
  elseif below(sub(entries[i + 1], 17, 24), ARGV[8]) then
    stale[#stale + 1] = entries[i]
  end
end
local epoch = ARGV[6]
if held ~= '' then
  if below(ARGV[7], sub(held, 17, 24)) and below(ARGV[3], sub(held, 9, 16)) then return {'N'} end
  epoch = greater(epoch, successor(sub(held, 1, 8)))
  if sub(held, 25) == ARGV[5] then held = '' end
end
call('HSET', KEYS[2], ARGV[2], epoch .. ARGV[3] .. ARGV[4] .. ARGV[5])
for i = 1, #stale do call('HDEL', KEYS[2], stale[i]) end
return {'K', epoch, held}
