-- All conversations of a user with read marks and states, and how far the projection had come (docs: pipeline, 4).
--
-- KEYS   1 incarnation, 2 ss: session shard, 3 sc: conversations, 4 sr: read marks, 5 st: states
-- ARGV   1 incarnation
-- Reply  K, dispatch position, user-state position ('' none), then field and value of the three hashes, each as a list;
--        or R
-- Uses: compare, guard

local refused = foreign()
if refused then return refused end
local held = call('HMGET', KEYS[2], 'p', 'u')
return {'K', held[1] or '', held[2] or '', call('HGETALL', KEYS[3]), call('HGETALL', KEYS[4]),
  call('HGETALL', KEYS[5])}
