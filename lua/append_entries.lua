-- Rows of many users and the watermark moves of a shard, all or nothing (docs: pipeline, 3.2). A shard that
-- already stands at `to` answers done; at or below trim nothing is written.
--
-- KEYS   1 incarnation, 2 ms: mailbox shard, then mu: users of a day and mb: mailboxes
-- ARGV   1 incarnation, 2 epoch8, 3 watermarks from, 4 watermarks to (packed), 5 position, 6 least seq8 of the rows,
--        7 number of days that begin, then day4 first8 of each, then for each key a number of arguments and these:
--        '0' and a member, repeated
-- Reply  K; or T trim8; or R; or F epoch8 (zeros where only the watermarks differ)
-- Uses: compare, guard
-- allow-file (tonumber): counts of arguments
-- allow-file (..): every part has a fixed width

local held = call('HMGET', KEYS[2], 'e', 'w', 't', 'd')
local refused = foreign() or refusal(held[1], ARGV[2])
if refused then return refused end
local from, to, trim = ARGV[3], ARGV[4], held[3]
if held[2] == to and from ~= to then return {'K'} end
if held[2] ~= from then
  if trim and not below(trim, sub(to, 1, 8)) then return {'T', trim} end
  return {'F', '\0\0\0\0\0\0\0\0'}
end

local argument = 8 + tonumber(ARGV[7])
local days = held[4] or ''
for i = 8, argument - 1 do
  local last = sub(days, -12)
  if last == '' or below(sub(last, 1, 4), sub(ARGV[i], 1, 4)) then days = days .. ARGV[i] end
end
local late = trim and not below(trim, ARGV[6])
for key = 3, #KEYS do
  local count = tonumber(ARGV[argument])
  -- rows of a late call; users of a day are 8 bytes and a tenant, and harmless
  if not late then
    call('ZADD', KEYS[key], unpack(ARGV, argument + 1, argument + count))
  else
    for i = argument + 2, argument + count, 2 do
      local row = ARGV[i]
      if sub(KEYS[key], 1, 3) == 'mu:' or below(trim, sub(row, 1, 8)) then
        call('ZADD', KEYS[key], '0', row)
      end
    end
  end
  argument = argument + 1 + count
end
if days ~= (held[4] or '') then
  call('HSET', KEYS[2], 'w', to, 'p', ARGV[5], 'd', days)
else
  call('HSET', KEYS[2], 'w', to, 'p', ARGV[5])
end
return {'K'}
