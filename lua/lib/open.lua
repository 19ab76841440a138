-- The beginning of every Open script: mark an empty keyspace, refuse an unmarked one with data, fence.
--
-- KEYS: 1 the incarnation marker, 2 the hash with the resource's fence. ARGV: 1 epoch8, 2 fresh marker.
-- Reply: none; defines opened() -> marker (nil when refused), the refusal. Nothing is written here but
-- the marker and the fence, and both only when nothing is refused.
-- Uses: compare

local call = redis.call
local KEYS, ARGV = KEYS, ARGV

local function opened()
  local marker = call('GET', KEYS[1])
  if not marker and call('DBSIZE') ~= 0 then return nil, {'U'} end
  local held = call('HGET', KEYS[2], 'e')
  if held and below(ARGV[1], held) then return nil, {'F', held} end
  if not marker then
    marker = ARGV[2]
    call('SET', KEYS[1], marker)
  end
  if held ~= ARGV[1] then call('HSET', KEYS[2], 'e', ARGV[1]) end
  return marker, nil
end
