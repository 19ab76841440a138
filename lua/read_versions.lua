-- Exact, immutable membership versions by name: content-addressed, so no fence.
--
-- KEYS   1 incarnation, then four a name: ws: writer shard, c: conversation, gm: members, gv: versions
-- ARGV   1 '' (any marked keyspace will do), then version8 digest16 a name
-- Reply  K and two a name: applied8 or '', then an array: empty (not in this store), or users16 of a single chat, or
--        control_seq8 bitmap, and for the first such name of a conversation before it user8, slot4 (joined8 left8)* of
--        all who ever were members; or R
-- Uses: compare, guard

local NOTHING = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'

local refused = unmarked()
if refused then return refused end
local reply, key, told = {'K'}, 2, {}
for i = 2, #ARGV do
  local found = {}
  if ARGV[i] == NOTHING then
    found[1] = call('HGET', KEYS[key + 1], 'u') or nil
  else
    local version = call('HGET', KEYS[key + 3], ARGV[i])
    if version then
      local members = KEYS[key + 2]
      if not told[members] then found = call('HGETALL', members) end
      told[members] = true
      found[#found + 1] = version
    end
  end
  reply[#reply + 1] = call('HGET', KEYS[key], 'a') or ''
  reply[#reply + 1] = found
  key = key + 4
end
return reply
