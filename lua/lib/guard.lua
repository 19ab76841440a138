-- What every script asks first: is this the incarnation the caller opened, and is its epoch the highest
-- of the resource (docs: pipeline, "Three laws").
--
-- KEYS: 1 the incarnation marker. ARGV: 1 its expected value ('' in requests bound to none). Reply: none; defines
--   foreign()            the STORE_RESET reply, or nil when the marker is the expected one
--   unmarked()           the same for requests bound to no incarnation: nil in any marked keyspace
--   refusal(held, epoch) the reply to an epoch that doesn't stand as the fence, or nil when it does
-- Uses: compare

local call = redis.call
local KEYS, ARGV = KEYS, ARGV

local function foreign()
  if call('GET', KEYS[1]) == ARGV[1] then return nil end
  return {'R'}
end

local function unmarked()
  if call('GET', KEYS[1]) then return nil end
  return {'R'}
end

-- An epoch above the fence was never opened in this store: the Open itself is lost, so the state its
-- machine remembers is another store's.
local function refusal(held, epoch)
  if held == epoch then return nil end
  if held and below(epoch, held) then return {'F', held} end
  return {'R'}
end
