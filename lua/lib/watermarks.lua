-- The watermarks of a mailbox shard, packed into one value so that a compare-and-set of all 64 lanes is one
-- comparison and one write: w = base8 (lane1 seq8)*, lanes ascending, only those that differ from the base.
--
-- KEYS and ARGV: none of its own. Reply: none; defines watermark_of(packed, lane1), least_watermark(packed).
-- Uses: compare

local function watermark_of(packed, lane)
  for at = 9, #packed, 9 do
    if sub(packed, at, at) == lane then return sub(packed, at + 1, at + 8) end
  end
  return sub(packed, 1, 8)
end

local function least_watermark(packed)
  local least = sub(packed, 1, 8)
  for at = 9, #packed, 9 do
    local own = sub(packed, at + 1, at + 8)
    if below(own, least) then least = own end
  end
  return least
end
