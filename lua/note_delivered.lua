-- How far devices have the mailbox, as the cursors they showed prove: only forward (docs: pipeline, 4). Of more devices of
-- a user than are ever told, those furthest behind go; of those at one place, the last in the order of bytes.
--
-- KEYS   1 incarnation, then dv: delivered watermarks of the user, one an item
-- ARGV   1 incarnation, 2 how many devices of a user stay, then two an item: device, seq8
-- Reply  K; or R
-- Uses: compare, guard
-- allow-file (tonumber, <): counts and widths

local refused = foreign()
if refused then return refused end
local limit = tonumber(ARGV[2])

local function first_of(a, b)
  local width = math.min(#a, #b)
  local x, y = sub(a, 1, width), sub(b, 1, width)
  if x ~= y then return below(x, y) end
  return #a < #b
end

local function ahead(a, b)
  if a.seq ~= b.seq then return below(b.seq, a.seq) end
  return first_of(a.device, b.device)
end

-- whether the device is one of those that stay; the others go
local function takes(key, device, seq)
  if call('HLEN', key) < limit then return true end
  local ranked, held, stays = {{device = device, seq = seq}}, call('HGETALL', key), true
  for i = 1, #held, 2 do ranked[#ranked + 1] = {device = held[i], seq = held[i + 1]} end
  table.sort(ranked, ahead)
  for i = limit + 1, #ranked do
    if ranked[i].device == device then stays = false else call('HDEL', key, ranked[i].device) end
  end
  return stays
end

for key = 2, #KEYS do
  local device, seq = ARGV[key * 2 - 1], ARGV[key * 2]
  local held = call('HGET', KEYS[key], device)
  if held then
    if below(held, seq) then call('HSET', KEYS[key], device, seq) end
  elseif takes(KEYS[key], device, seq) then
    call('HSET', KEYS[key], device, seq)
  end
end
return {'K'}
