-- The beginning of every Open script: mark an empty keyspace, refuse an unmarked one with data, fence.
--
-- KEYS: 1 the incarnation marker, 2 the hash with the resource's fence. ARGV: 1 epoch8, 2 fresh marker,
-- 3 who opens ('' owns nothing).
-- Reply: none; defines opened() -> marker (nil when refused), the refusal. Nothing is written here but
-- the marker and the fence, and both only when nothing is refused.
-- Uses: compare

local call = redis.call
local KEYS, ARGV = KEYS, ARGV

local function opened()
  local marker = call('GET', KEYS[1])
  if not marker and call('DBSIZE') ~= 0 then return nil, {'U'} end
  local fence = call('HMGET', KEYS[2], 'e', 'i')
  local held = fence[1]
  if held and below(ARGV[1], held) then return nil, {'F', held} end
  -- A registry put back from an older copy grants an epoch twice: of two owners of one epoch the second goes no further.
  if held == ARGV[1] and ARGV[3] ~= '' and fence[2] ~= ARGV[3] then return nil, {'F', held} end
  if not marker then
    marker = ARGV[2]
    call('SET', KEYS[1], marker)
  end
  if held ~= ARGV[1] then call('HSET', KEYS[2], 'e', ARGV[1], 'i', ARGV[3]) end
  return marker, nil
end
