-- An in-memory Redis keyspace in Lua 5.1, so that the simulator runs the scripts under /lua word
-- for word (docs/architecture.md, "One meaning for the store").
--
-- Three files: this one holds the values, their byte order, the undo log and the spaces;
-- redis_commands.lua the commands; redis_scripting.lua what a script sees of Redis (redis.call, its
-- argument and reply rules, its globals). Why in Lua: redis.call as a Lua function costs a sixth of
-- a Python callback, and a script makes ten of them.
--
-- A space is one keyspace. Its store maps a key to a Lua string (type string), to {kind, n,
-- f = field -> value} (hash) or to {kind, n, has = member -> true, sorted = array} (zset and set).

local byte, floor = string.byte, math.floor
local insert, remove, sort = table.insert, table.remove, table.sort
local setlocale = os.setlocale

-- The space of the call in progress, held in locals because every command touches them.
local store, size, undo, top

local WRONGTYPE = 'WRONGTYPE Operation against a key holding the wrong kind of value'

local function fail(message)
  error({err = message}, 0)
end

-- Order of members --------------------------------------------------------------------------------
-- Lua's own < collates by the locale of the process. It is the byte order under C, and ten times as
-- fast as comparing bytes here, so each call looks at the locale once and picks.

local function less_by_bytes(a, b)
  local i = 1
  while true do
    local a1, a2, a3, a4 = byte(a, i, i + 3)
    local b1, b2, b3, b4 = byte(b, i, i + 3)
    if a1 ~= b1 then return (a1 or -1) < (b1 or -1) end
    if a2 ~= b2 then return (a2 or -1) < (b2 or -1) end
    if a3 ~= b3 then return (a3 or -1) < (b3 or -1) end
    if a4 ~= b4 then return (a4 or -1) < (b4 or -1) end
    if not a4 then return false end
    i = i + 4
  end
end

local function less_by_collation(a, b)
  return a < b
end

local less = less_by_bytes

local function choose_order()
  local collation = setlocale(nil, 'collate')
  less = (collation == 'C' or collation == 'POSIX') and less_by_collation or less_by_bytes
end

-- The index of the first member that is not less than m, in 1 .. #sorted + 1.
local function lower_bound(sorted, m)
  local low, high = 1, #sorted
  -- appending in order is the common case
  if high == 0 or less(sorted[high], m) then return high + 1 end
  while low < high do
    local middle = floor((low + high) / 2)
    if less(sorted[middle], m) then low = middle + 1 else high = middle end
  end
  return low
end

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  sort(keys, less)
  return keys
end

-- Undo: four slots a write, (function, key, field, old), run backwards by rollback_to -------------

local function remember(how, key, field, old)
  undo[top + 1], undo[top + 2], undo[top + 3], undo[top + 4] = how, key, field, old
  top = top + 4
end

local function undo_key(key, _, old)
  if old then
    if store[key] == nil then size = size + 1 end
    store[key] = old
  else
    size = size - 1
    store[key] = nil
  end
end

local function undo_field(key, field, old)
  local hash = store[key]
  local fields = hash.f
  if old then
    if fields[field] == nil then hash.n = hash.n + 1 end
    fields[field] = old
  else
    hash.n = hash.n - 1
    fields[field] = nil
  end
end

local function put_member(value, member)
  value.n = value.n + 1
  value.has[member] = true
  insert(value.sorted, lower_bound(value.sorted, member), member)
end

local function take_member(value, member)
  value.n = value.n - 1
  value.has[member] = nil
  remove(value.sorted, lower_bound(value.sorted, member))
end

local function undo_put(key, member)
  take_member(store[key], member)
end

local function undo_take(key, member)
  put_member(store[key], member)
end

-- Keys and values ---------------------------------------------------------------------------------

local function put_key(key, value)
  local old = store[key]
  if old == nil then
    size = size + 1
    old = false
  end
  remember(undo_key, key, false, old)
  store[key] = value
end

local function drop_key(key)
  remember(undo_key, key, false, store[key])
  size = size - 1
  store[key] = nil
end

local function reading(key, kind)
  local value = store[key]
  if value == nil then return nil end
  if type(value) == 'string' or value.kind ~= kind then fail(WRONGTYPE) end
  return value
end

local function writing(key, kind)
  local value = reading(key, kind)
  if value then return value end
  if kind == 'hash' then
    value = {kind = kind, n = 0, f = {}}
  else
    value = {kind = kind, n = 0, has = {}, sorted = {}}
  end
  put_key(key, value)
  return value
end

local function set_field(key, hash, field, new)
  local old = hash.f[field]
  if old == nil then
    hash.n = hash.n + 1
    old = false
  end
  remember(undo_field, key, field, old)
  hash.f[field] = new
  return old and 0 or 1
end

local function remove_field(key, hash, field)
  local old = hash.f[field]
  if old == nil then return 0 end
  remember(undo_field, key, field, old)
  hash.f[field] = nil
  hash.n = hash.n - 1
  if hash.n == 0 then drop_key(key) end
  return 1
end

local function add_member(key, value, member)
  if value.has[member] then return 0 end
  put_member(value, member)
  remember(undo_put, key, member, false)
  return 1
end

-- Taken one by one although a range is contiguous: the undo log stays one entry a member and ranges
-- are short.
local function remove_member(key, value, member)
  if not value.has[member] then return 0 end
  take_member(value, member)
  remember(undo_take, key, member, false)
  if value.n == 0 then drop_key(key) end
  return 1
end

-- Keyspaces and their undo logs -------------------------------------------------------------------
-- position counts the calls that wrote; ends[p - base] is the length of the undo log after call p;
-- undo and ends begin at position base, and what lies below forgotten may not be asked for.

local DEAD_SLOTS_MAX = 4096

local function empty_space(slots_max)
  return {
    store = {}, size = 0, undo = {}, top = 0, slots_max = slots_max,
    ends = {[0] = 0}, position = 0, base = 0, forgotten = 0,
  }
end

local function enter(space)
  store, size, undo, top = space.store, space.size, space.undo, space.top
end

local function forget_before(space, position, at_once)
  if position > space.position then position = space.position end
  if position <= space.forgotten then return end
  space.forgotten = position
  local dead = space.ends[position - space.base]
  -- moving the rest down must pay
  if not at_once and (dead < DEAD_SLOTS_MAX or 2 * dead < space.top) then return end
  if dead == space.top then -- nothing to move: write over the dead slots
    if dead > space.slots_max then space.undo = {} end
    space.ends, space.base, space.top = {[0] = 0}, position, 0
    return
  end
  local old_undo, old_ends, new_undo, new_ends = space.undo, space.ends, {}, {}
  for i = dead + 1, space.top do new_undo[i - dead] = old_undo[i] end
  for p = position, space.position do new_ends[p - position] = old_ends[p - space.base] - dead end
  space.undo, space.ends, space.base, space.top = new_undo, new_ends, position, space.top - dead
end

local function leave(space)
  space.size = size
  if top == space.top then return end
  space.top = top
  local position = space.position + 1
  space.position = position
  space.ends[position - space.base] = top
  if top > space.slots_max then
    forget_before(space, space.base + floor((position - space.base + 1) / 2), true)
  end
end

-- Beyond recall: no tail of the log leads back behind a flush.
local function flush(space)
  local position = space.position + 1
  space.store, space.size, space.undo, space.top, space.ends = {}, 0, {}, 0, {[0] = 0}
  space.position, space.base, space.forgotten = position, position, position
end

local function rollback_to(space, position)
  enter(space)
  choose_order()
  local target = space.ends[position - space.base]
  for i = top - 3, target + 1, -4 do
    undo[i](undo[i + 1], undo[i + 2], undo[i + 3])
    undo[i], undo[i + 1], undo[i + 2], undo[i + 3] = nil, nil, nil, nil
  end
  for p = space.position, position + 1, -1 do space.ends[p - space.base] = nil end
  space.size, space.top, space.position = size, target, position
end

-- Everything in a space, in byte order: for each key its name, kind, count and contents.
local function picture(space)
  choose_order()
  local out = {}
  local function say(value) out[#out + 1] = value end
  for _, key in ipairs(sorted_keys(space.store)) do
    local value = space.store[key]
    say(key)
    if type(value) == 'string' then
      say('string')
      say(1)
      say(value)
    elseif value.kind == 'hash' then
      say('hash')
      say(2 * value.n)
      for _, field in ipairs(sorted_keys(value.f)) do
        say(field)
        say(value.f[field])
      end
    else
      say(value.kind)
      say(value.n)
      for _, member in ipairs(value.sorted) do say(member) end
    end
  end
  return out
end

return {
  fail = fail, WRONGTYPE = WRONGTYPE, choose_order = choose_order, lower_bound = lower_bound,
  sorted_keys = sorted_keys, put_key = put_key, drop_key = drop_key, reading = reading,
  writing = writing, set_field = set_field, remove_field = remove_field, add_member = add_member,
  remove_member = remove_member, enter = enter, leave = leave, empty_space = empty_space,
  forget_before = forget_before, flush = flush, rollback_to = rollback_to, picture = picture,
  peek = function(key) return store[key] end,
  count_keys = function() return size end,
}
