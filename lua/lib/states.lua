-- Read marks and user state of one user (docs: pipeline, 4): every value moves one way only.
--
-- sr:<shard><user><tenant> is a hash conversation16 -> read8 offset8: the greatest read mark, and the user-state
-- offset of the last change of either kind. st: likewise is a hash conversation16 -> order flags4 value, where
-- order (73 bytes) = version8 device64 width1 decides. sx: is a zset (score 0) of offset8 conversation16, one
-- member a conversation, in the order of their last changes.
--
-- KEYS and ARGV: none of its own. Reply: none; defines loses(kind, conversation, value, held) -> true where the held
-- value stays and differs; put(rkey, skey, xkey, conversation, offset, mark, state): writes, and can't fail.
-- Uses: compare
-- allow-file (..): every part but the last has a fixed width

local ORDER = 73
local NO_MARK = '\0\0\0\0\0\0\0\0'

-- mark ~= '' is a read mark, else a state is compared by its order
local function loses(mark, state, held)
  if not held then return false end
  if mark ~= '' then return below(mark, sub(held, 1, 8)) end
  return below(sub(state, 1, ORDER), sub(held, 1, ORDER))
end

local function put(rkey, skey, xkey, conversation, offset, mark, state)
  local held = redis.call('HGET', rkey, conversation)
  local read = NO_MARK
  if held then
    read = sub(held, 1, 8)
    redis.call('ZREM', xkey, sub(held, 9, 16) .. conversation)
  end
  if mark ~= '' then read = greater(mark, read) else redis.call('HSET', skey, conversation, state) end
  redis.call('HSET', rkey, conversation, read .. offset)
  redis.call('ZADD', xkey, '0', offset .. conversation)
end
