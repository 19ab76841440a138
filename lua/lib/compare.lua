-- The only place where the order of two values is decided: fixed-width big-endian bytes, byte by byte.
--
-- Lua's own `<` on strings follows the server's locale, so it is never used on a value; single bytes
-- are numbers and compare as such. A start-up self-test runs this on the server at hand.
--
-- KEYS and ARGV: none of its own. Reply: none; defines below(a, b), greater(a, b).
-- allow-file (<): single bytes are compared as numbers, never strings

local byte, sub = string.byte, string.sub

-- a < b, both of the same width
local function below(a, b)
  if a == b then return false end
  for i = 1, #a do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x < y end
  end
  return false
end

-- the greater of the two, both of the same width
local function greater(a, b)
  if below(a, b) then return b end
  return a
end
