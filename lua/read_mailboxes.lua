-- Trim, watermark and rows of several users' mailboxes in one script (docs: pipeline, 3.3).
--
-- KEYS   1 incarnation, 2 ms: mailbox shard
-- ARGV   1 incarnation, then seven a read: user8 tenant, lane1, after8, the seq8 behind after, up_to8 or '', limit,
--        prefix of the mailbox keys (mb: and shard4)
-- Reply  K and one array a read: watermark8, trim8, '1' or '0' (more), rows; or R
-- Uses: compare, successor, guard, watermarks
-- allow-file (tonumber, <): limits and counts of rows
-- allow-file (..): every part but the last has a fixed width

local refused = foreign()
if refused then return refused end

local shard = call('HMGET', KEYS[2], 'w', 't', 'd')
local packed, days = shard[1] or '', shard[3] or ''
local trim = shard[2] or '\0\0\0\0\0\0\0\0'
if packed == '' then return {'R'} end

-- Where the reading begins: the last day range that starts at or before the first wanted offset. Only the 48
-- bits of the offset are compared; across shard epochs cursors are rebased before they are read. Epochs begin
-- at 1, so what is wanted from epoch 0 on is wanted from the first entry on, whatever its offset bits say.
local function first_day(wanted)
  local at = 1
  if sub(wanted, 1, 2) == '\0\0' then return at end
  for next_day = 13, #days, 12 do
    if below(sub(wanted, 3, 8), sub(days, next_day + 6, next_day + 11)) then break end
    at = next_day
  end
  return at
end

local function read(user, after, wanted, watermark, up_to, limit, prefix)
  local result = {watermark, trim, '0'}
  if up_to ~= '' and below(up_to, watermark) then watermark = up_to end
  if below(after, trim) or not below(after, watermark) then return result end
  local high = '(' .. successor(watermark)
  for at = first_day(wanted), #days, 12 do
    local key = prefix .. sub(days, at, at + 3) .. user
    local rows = call('ZRANGEBYLEX', key, '[' .. wanted, high, 'LIMIT', '0', limit + 1)
    for i = 1, #rows do
      if limit == 0 then
        result[3] = '1'
        return result
      end
      result[#result + 1] = rows[i]
      limit = limit - 1
    end
  end
  return result
end

local reply = {'K'}
for i = 2, #ARGV, 7 do
  reply[#reply + 1] = read(ARGV[i], ARGV[i + 2], ARGV[i + 3], watermark_of(packed, ARGV[i + 1]),
    ARGV[i + 4], tonumber(ARGV[i + 5]), ARGV[i + 6])
end
return reply
