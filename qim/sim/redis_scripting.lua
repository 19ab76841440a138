-- What a script sees of Redis, and how its reply leaves: the argument rules of redis.call, the
-- read-only globals, replies cut at the first nil, numbers truncated, true -> 1, false -> nil, err
-- and ok tables. Called once with the tables of redis_keyspace.lua and redis_commands.lua and
-- sha1hex(string); what it returns is called by qim/sim/keyspace.py alone.

local space, commands, sha1hex = ...

local byte, find, format = string.byte, string.find, string.format
local gsub, sub, upper = string.gsub, string.sub, string.upper
local floor, tostring, unpack, select, type = math.floor, tostring, unpack, select, type
local setmetatable, native_pcall, error = setmetatable, pcall, error
local fail, refuse = space.fail, commands.refuse
local run_of, least, most = commands.run, commands.least, commands.most

-- redis.call --------------------------------------------------------------------------------------

-- Redis 7.0 prints a number argument with %.17g, later servers with the fewest digits; scripts may
-- use what agrees.
local function number_text(number)
  if number == floor(number) and number > -1e17 and number < 1e17 then
    return number == 0 and '0' or format('%.0f', number)
  end
  local text = format('%.17g', number)
  if #text > 15 or find(text, '[^%d.%-]') then
    refuse('a number argument that servers print differently: ' .. text)
  end
  return text
end

local function texts(count, ...)
  local given = {...}
  for i = 1, count do
    local argument = given[i]
    if type(argument) == 'number' then
      given[i] = number_text(argument)
    elseif type(argument) ~= 'string' then
      fail('ERR Command arguments must be strings or integers')
    end
  end
  return unpack(given, 1, count)
end

local function unusual_call(count, name, ...)
  if count < 0 then fail('ERR Please specify at least one argument for this call') end
  name = texts(1, name)
  texts(count, ...)
  local run = run_of[name] or run_of[upper(name)]
  if not run then fail('ERR Unknown command called from script') end
  if count < least[run] or count > most[run] then
    fail('ERR Wrong number of args calling command from script')
  end
  return run(texts(count, ...))
end

-- The hot path: a command by its usual name, with up to three arguments that are strings already.
local function redis_call(name, ...)
  local count, run = select('#', ...), run_of[name]
  if run and count >= least[run] and count <= most[run] then
    local a, b, c = ...
    if count <= 3 and type(a) == 'string' then
      if count == 1 then return run(a) end
      if type(b) == 'string' then
        if count == 2 then return run(a, b) end
        if type(c) == 'string' then return run(a, b, c) end
      elseif b == 0 and count == 3 and type(c) == 'string' then
        return run(a, '0', c) -- ZADD key 0 member
      end
    end
    local given = {...}
    for i = 1, count do
      if type(given[i]) ~= 'string' then return run(texts(count, ...)) end
    end
    return run(...)
  end
  if name == nil then count = -1 end
  return unusual_call(count, name, ...)
end

local function caught(ok, reply, ...)
  if ok then return reply, ... end
  if type(reply) == 'table' then return reply end
  return {err = 'ERR ' .. reply}
end

local function redis_pcall(...)
  return caught(native_pcall(redis_call, ...))
end

local function single_field(field, ...)
  local text = ...
  if select('#', ...) ~= 1 or type(text) ~= 'string' then
    return {err = 'ERR wrong number or type of arguments'}
  end
  return {[field] = text}
end

local function error_reply(...)
  local reply = single_field('err', ...)
  local text = reply.err
  if byte(text, 1) == 45 then text = sub(text, 2) end -- '-'
  if not find(text, ' ', 1, true) then text = 'ERR ' .. text end
  return {err = text}
end

-- What a script can see ---------------------------------------------------------------------------

local function read_only(contents)
  return setmetatable({}, {
    __index = contents,
    __newindex = function() error('Attempt to modify a readonly table', 2) end,
    __metatable = false,
  })
end

-- In Redis, pcall hands over the text of a command's error, not its table.
local function text_of_error(ok, problem, ...)
  if not ok and type(problem) == 'table' and type(problem.err) == 'string' then
    return false, problem.err
  end
  return ok, problem, ...
end

local function sandbox_pcall(...)
  return text_of_error(native_pcall(...))
end

-- An address differs from run to run; printing one would leak it into replies.
local function sandbox_tostring(value)
  local kind = type(value)
  if kind == 'table' or kind == 'function' then refuse('tostring of a ' .. kind) end
  return tostring(value)
end

local globals = {
  assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs, next = next,
  pairs = pairs, pcall = sandbox_pcall, rawequal = rawequal, rawget = rawget,
  select = select, setmetatable = setmetatable, tonumber = tonumber, tostring = sandbox_tostring,
  type = type, unpack = unpack,
}

local function library(name, left_out)
  local contents = {}
  for key, value in pairs(_G[name]) do
    if not left_out[key] then contents[key] = value end
  end
  globals[name] = read_only(contents)
end
library('string', {dump = true})
library('table', {})
library('math', {random = true, randomseed = true})

globals.redis = read_only({
  call = redis_call, pcall = redis_pcall, error_reply = error_reply,
  status_reply = function(...) return single_field('ok', ...) end,
  sha1hex = function(...)
    if select('#', ...) ~= 1 then fail('ERR wrong number of arguments') end
    return sha1hex(tostring(...))
  end,
})

setmetatable(globals, {__index = function(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end})
globals._G = read_only(globals)
local environment = globals._G

-- Replies to the caller: (kind, values...) --------------------------------------------------------
-- 0 a scalar, 1 a flat array, 2 a nested array (preorder, each array as true, length), 3 an error,
-- 4 a nested array too long for the Lua stack, left for take().

local RESULTS_MAX = 7000
local waiting

local function truncated(number)
  if number ~= number or number >= 2 ^ 63 or number < -2 ^ 63 then return -2 ^ 63 end
  return number < 0 and -floor(-number) or floor(number)
end

local function scalar(value)
  local kind = type(value)
  if kind == 'string' then return value end
  if kind == 'number' then return truncated(value) end
  if value == true then return 1 end
  return nil
end

local function one_line(text)
  return (gsub(text, '[\r\n]', ' '))
end

local flatten

local function flatten_element(out, at, value)
  if type(value) ~= 'table' then
    out[at + 1] = scalar(value)
    return at + 1
  end
  if type(value.err) == 'string' then refuse('an error inside an array of replies') end
  if type(value.ok) == 'string' then
    out[at + 1] = one_line(value.ok)
    return at + 1
  end
  return flatten(out, at, value)
end

flatten = function(out, at, array)
  local head, count, value = at + 2, 0, array[1]
  out[at + 1], at = true, head
  while value ~= nil do
    if type(value) == 'string' then -- nearly all are
      at = at + 1
      out[at] = value
    else
      at = flatten_element(out, at, value)
    end
    count = count + 1
    value = array[count + 1]
  end
  out[head] = count
  return at
end

local function answer_array(array)
  local count, value = 0, array[1]
  while type(value) == 'string' do
    count = count + 1
    value = array[count + 1]
  end
  if value == nil and count <= RESULTS_MAX then return 1, unpack(array, 1, count) end
  local out = {}
  local length = flatten(out, 0, array)
  if length <= RESULTS_MAX then return 2, unpack(out, 1, length) end
  waiting = out
  return 4, length
end

local function answer(value)
  if type(value) ~= 'table' then return 0, scalar(value) end
  if type(value.err) == 'string' then return 3, one_line(value.err) end
  if type(value.ok) == 'string' then return 0, one_line(value.ok) end
  return answer_array(value)
end

local function error_text(problem)
  if type(problem) == 'table' then
    return type(problem.err) == 'string' and problem.err or 'ERR unknown error'
  end
  return 'ERR ' .. tostring(problem)
end

-- Calls -------------------------------------------------------------------------------------------

local function split(key_count, ...)
  if key_count == 1 then return {(...)}, {select(2, ...)} end
  local keys = {...}
  local arguments = {select(key_count + 1, ...)}
  for i = #keys, key_count + 1, -1 do keys[i] = nil end
  return keys, arguments
end

local function run(chunk)
  return answer((chunk()))
end

local function finish(target, ok, kind, ...)
  space.leave(target)
  if not ok then return 3, error_text(kind) end
  return kind, ...
end

local function call(target, chunk, key_count, ...)
  space.enter(target)
  space.choose_order()
  local keys, arguments = split(key_count, ...)
  globals.KEYS, globals.ARGV = keys, arguments
  return finish(target, native_pcall(run, chunk))
end

local function compile(name, source)
  local chunk, problem = loadstring(source, '@' .. name)
  if not chunk then return nil, problem end
  setfenv(chunk, environment)
  return chunk
end

local function picture(target)
  waiting = space.picture(target)
  return #waiting
end

-- A slice of a reply or picture that is too long for the Lua stack in one piece.
local function take(first, last)
  return unpack(waiting, first, last)
end

return {
  empty_space = space.empty_space, rollback_to = space.rollback_to,
  forget_before = space.forget_before, flush = space.flush, compile = compile, call = call,
  picture = picture, take = take,
  position = function(target) return target.position end,
  forgotten = function(target) return target.forgotten end,
}
