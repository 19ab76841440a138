-- Proves the shared routines on the server at hand: its locale and its Lua (start-up check, conformance tests).
--
-- KEYS   1 incarnation (not read)
-- ARGV   pairs of values of the same width
-- Reply  K, then three a pair: '1' when the first is below the second else '0', the greater, and the successor of the
--        first or '' where it has none
-- Uses: compare, successor

local reply = {'K'}
for i = 1, #ARGV, 2 do
  local a, b = ARGV[i], ARGV[i + 1]
  reply[#reply + 1] = below(a, b) and '1' or '0'
  reply[#reply + 1] = greater(a, b)
  local fine, next_value = pcall(successor, a)
  reply[#reply + 1] = fine and next_value or ''
end
return reply
