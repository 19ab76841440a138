-- The only arithmetic on values: the next u64 or u128 as fixed-width big-endian bytes. Lua's numbers
-- are doubles and lose neighbours above 2^53.
--
-- KEYS and ARGV: none of its own. Reply: none; defines successor(value). It raises at the greatest
-- value, so a script calls it before its first write.
-- Uses: compare
-- allow-file (<): single bytes are compared as numbers, never strings
-- allow-file (..): the parts have the width of what they replace

local char, rep = string.char, string.rep

local function successor(value)
  local width = #value
  local last = byte(value, width)
  if last < 255 then return sub(value, 1, width - 1) .. char(last + 1) end
  for i = width - 1, 1, -1 do
    local digit = byte(value, i)
    if digit < 255 then
      return sub(value, 1, i - 1) .. char(digit + 1) .. rep('\0', width - i)
    end
  end
  error('no successor: the value is the greatest of its width')
end
