-- The commands of the simulated keyspace: name -> function over string arguments whose number has
-- been checked against arity. Called once with the table of redis_keyspace.lua.
--
-- What scripts of ours may not use is refused by a script error, never given another meaning in
-- silence: options other than SET NX, scores other than 0, integers beyond 2^53.

local space = ...

local byte, find, sub, upper = string.byte, string.find, string.sub, string.upper
local huge = math.huge
local ipairs, select, tonumber, tostring, type = ipairs, select, tonumber, tostring, type
local unpack = unpack
local fail, peek, put_key, drop_key = space.fail, space.peek, space.put_key, space.drop_key
local reading, writing, set_field = space.reading, space.writing, space.set_field
local remove_field, sorted_keys = space.remove_field, space.sorted_keys
local add_member, remove_member = space.add_member, space.remove_member
local lower_bound = space.lower_bound

local NOT_AN_INTEGER = 'ERR value is not an integer or out of range'
local BAD_LEX_RANGE = 'ERR min or max not valid string range item'
local SYNTAX = 'ERR syntax error'

local function refuse(what)
  fail('ERR refused by the simulated keyspace: ' .. what)
end

-- What every range and limit says; looking one up spares the pattern.
local small_integers = {}
for i = 0, 255 do small_integers[tostring(i)] = i end

local function integer(text)
  local small = small_integers[text]
  if small then return small end
  if not find(text, '^%-?[1-9]%d*$') and text ~= '0' then fail(NOT_AN_INTEGER) end
  local number = tonumber(text)
  if number > 2 ^ 53 or number < -2 ^ 53 then refuse('an integer beyond 2^53: ' .. text) end
  return number
end

-- Commands: arguments are strings already, and arity has been checked -----------------------------

local commands = {}
local least, most = {}, {} -- function -> how many arguments after the name

local function command(name, fewest, greatest, run)
  commands[name], commands[string.lower(name)] = run, run
  least[run], most[run] = fewest, greatest
end

command('GET', 1, 1, function(key)
  local value = peek(key)
  if value == nil then return false end
  if type(value) ~= 'string' then fail(space.WRONGTYPE) end
  return value
end)

command('SET', 2, huge, function(key, value, option, more)
  if option == nil then
    put_key(key, value)
    return {ok = 'OK'}
  end
  if more ~= nil or upper(option) ~= 'NX' then refuse('an option of SET: ' .. option) end
  if peek(key) ~= nil then return false end
  put_key(key, value)
  return {ok = 'OK'}
end)

local function delete(...)
  local removed = 0
  for i = 1, select('#', ...) do
    local key = select(i, ...)
    if peek(key) ~= nil then
      drop_key(key)
      removed = removed + 1
    end
  end
  return removed
end
command('DEL', 1, huge, delete)
command('UNLINK', 1, huge, function(...) return delete(...) end)

command('EXISTS', 1, huge, function(...)
  local found = 0
  for i = 1, select('#', ...) do
    if peek((select(i, ...))) ~= nil then found = found + 1 end
  end
  return found
end)

command('TYPE', 1, 1, function(key)
  local value = peek(key)
  if value == nil then return {ok = 'none'} end
  return {ok = type(value) == 'string' and 'string' or value.kind}
end)

command('DBSIZE', 0, 0, space.count_keys)

command('HGET', 2, 2, function(key, field)
  local hash = reading(key, 'hash')
  return hash and hash.f[field] or false
end)

command('HMGET', 2, huge, function(key, ...)
  local hash = reading(key, 'hash')
  local fields, reply = hash and hash.f or {}, {...}
  for i = 1, #reply do reply[i] = fields[reply[i]] or false end
  return reply
end)

command('HSET', 3, huge, function(key, field, new, ...)
  local count = select('#', ...)
  if count % 2 == 1 then fail("ERR wrong number of arguments for 'hset' command") end
  local hash = writing(key, 'hash')
  local added = set_field(key, hash, field, new)
  if count == 0 then return added end
  local field2, new2, field3, new3 = ...
  added = added + set_field(key, hash, field2, new2)
  if count == 2 then return added end
  if count == 4 then return added + set_field(key, hash, field3, new3) end
  local more = {...}
  for i = 3, count, 2 do added = added + set_field(key, hash, more[i], more[i + 1]) end
  return added
end)

command('HSETNX', 3, 3, function(key, field, value)
  local hash = reading(key, 'hash')
  if hash and hash.f[field] then return 0 end
  set_field(key, hash or writing(key, 'hash'), field, value)
  return 1
end)

command('HDEL', 2, huge, function(key, ...)
  local hash, removed = reading(key, 'hash'), 0
  if not hash then return 0 end
  for _, field in ipairs({...}) do removed = removed + remove_field(key, hash, field) end
  return removed
end)

command('HLEN', 1, 1, function(key)
  local hash = reading(key, 'hash')
  return hash and hash.n or 0
end)

command('HEXISTS', 2, 2, function(key, field)
  local hash = reading(key, 'hash')
  return hash and hash.f[field] and 1 or 0
end)

-- Redis promises no order here (small hashes keep insertion order, large ones none); ours is the
-- byte order of fields.
command('HKEYS', 1, 1, function(key)
  local hash = reading(key, 'hash')
  return hash and sorted_keys(hash.f) or {}
end)

command('HGETALL', 1, 1, function(key)
  local hash = reading(key, 'hash')
  if not hash then return {} end
  local reply = {}
  for i, field in ipairs(sorted_keys(hash.f)) do
    reply[2 * i - 1], reply[2 * i] = field, hash.f[field]
  end
  return reply
end)

local function remove_members(kind)
  return function(key, ...)
    local value, removed = reading(key, kind), 0
    if not value then return 0 end
    for _, member in ipairs({...}) do removed = removed + remove_member(key, value, member) end
    return removed
  end
end

local function cardinality(kind)
  return function(key)
    local value = reading(key, kind)
    return value and value.n or 0
  end
end

command('SADD', 2, huge, function(key, ...)
  local value, added = writing(key, 'set'), 0
  for _, member in ipairs({...}) do added = added + add_member(key, value, member) end
  return added
end)
command('SREM', 2, huge, remove_members('set'))
command('SCARD', 1, 1, cardinality('set'))

command('SISMEMBER', 2, 2, function(key, member)
  local value = reading(key, 'set')
  return value and value.has[member] and 1 or 0
end)

-- Redis promises no order here either; ours is the byte order.
command('SMEMBERS', 1, 1, function(key)
  local value = reading(key, 'set')
  return value and {unpack(value.sorted)} or {}
end)

-- Ordered sets hold score 0 alone, so the order of members is their byte order.
command('ZADD', 3, huge, function(key, score, member, ...)
  if score == '0' and select('#', ...) == 0 then
    return add_member(key, writing(key, 'zset'), member)
  end
  local given = {score, member, ...}
  if #given % 2 == 1 then
    if tonumber(given[1]) then fail(SYNTAX) end
    refuse('an option of ZADD: ' .. given[1])
  end
  for i = 1, #given, 2 do
    if not tonumber(given[i]) then fail('ERR value is not a valid float') end
    if given[i] ~= '0' then refuse('a score other than 0: ' .. given[i]) end
  end
  local value, added = writing(key, 'zset'), 0
  for i = 2, #given, 2 do added = added + add_member(key, value, given[i]) end
  return added
end)
command('ZREM', 2, huge, remove_members('zset'))
command('ZCARD', 1, 1, cardinality('zset'))

command('ZSCORE', 2, 2, function(key, member)
  local value = reading(key, 'zset')
  return value and value.has[member] and '0' or false
end)

command('ZRANGE', 3, huge, function(key, start, stop, option)
  if option then refuse('an option of ZRANGE: ' .. option) end
  start, stop = integer(start), integer(stop)
  local value, reply = reading(key, 'zset'), {}
  if not value then return reply end
  if start < 0 then start = start + value.n end
  if stop < 0 then stop = stop + value.n end
  for i = start < 0 and 0 or start, stop < value.n and stop or value.n - 1 do
    reply[#reply + 1] = value.sorted[i + 1]
  end
  return reply
end)

-- A bound as rank, text, open: rank -1 and 1 are the infinities; after '[' or '(' stand any bytes.
local function lex_bound(text)
  local head = byte(text, 1)
  if head == 91 then return 0, sub(text, 2), false end -- '['
  if head == 40 then return 0, sub(text, 2), true end -- '('
  if text == '-' then return -1 end
  if text == '+' then return 1 end
  fail(BAD_LEX_RANGE)
end

-- The zset, and first and last index of the range in its sorted members; empty when first > last. Redis reads the
-- bounds before it looks at the key's type.
local function checked_range(key, low, high)
  local low_rank, low_text, low_open = lex_bound(low)
  local high_rank, high_text, high_open = lex_bound(high)
  local value = reading(key, 'zset')
  if not value then return nil, 1, 0 end
  local sorted, first, last = value.sorted, 1, value.n
  if low_rank == 1 or high_rank == -1 then return value, 1, 0 end
  if low_rank == 0 then
    first = lower_bound(sorted, low_text)
    if low_open and sorted[first] == low_text then first = first + 1 end
  end
  if high_rank == 0 then
    last = lower_bound(sorted, high_text)
    if high_open or sorted[last] ~= high_text then last = last - 1 end
  end
  return value, first, last
end

-- Redis reads the LIMIT before the bounds.
local function lex_limit(option, offset, count, more)
  if option == nil then return 0, -1 end
  if (option ~= 'LIMIT' and upper(option) ~= 'LIMIT') or count == nil or more ~= nil then fail(SYNTAX) end
  return integer(offset), integer(count)
end

command('ZLEXCOUNT', 3, 3, function(key, low, high)
  local _, first, last = checked_range(key, low, high)
  return last < first and 0 or last - first + 1
end)

command('ZRANGEBYLEX', 3, huge, function(key, low, high, ...)
  local offset, count = lex_limit(...)
  local value, first, last = checked_range(key, low, high)
  local reply = {}
  if offset < 0 then return reply end
  first = first + offset
  if count >= 0 and first + count - 1 < last then last = first + count - 1 end
  for i = first, last do reply[#reply + 1] = value.sorted[i] end
  return reply
end)

command('ZREVRANGEBYLEX', 3, huge, function(key, high, low, ...)
  local offset, count = lex_limit(...)
  local value, first, last = checked_range(key, low, high)
  local reply = {}
  if offset < 0 then return reply end
  last = last - offset
  if count >= 0 and last - count + 1 > first then first = last - count + 1 end
  for i = last, first, -1 do reply[#reply + 1] = value.sorted[i] end
  return reply
end)

command('ZREMRANGEBYLEX', 3, 3, function(key, low, high)
  local value, first, last = checked_range(key, low, high)
  if last < first then return 0 end
  for i = last, first, -1 do remove_member(key, value, value.sorted[i]) end
  return last - first + 1
end)

return {run = commands, least = least, most = most, refuse = refuse}
