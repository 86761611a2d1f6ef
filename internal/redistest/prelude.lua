-- Goes in front of every script, joined into one line so that the script's own line numbers stay.
-- It shadows the global redis by a table with the same functions, whose call and pcall know only virtual time:
-- redistest:clock holds now, and redistest:ttl the deadline of each key that has one, both in microseconds.
local redis = (function(real)
  local NOW = real.call('GET', 'redistest:clock')
  if not NOW then error('redistest: the clock is gone from the server, Set it again') end
  NOW = tonumber(NOW)
  local TTL = 'redistest:ttl'
  local UNIT = {EXPIRE = 1000000, EXPIREAT = 1000000, PEXPIRE = 1000, PEXPIREAT = 1000,
    EX = 1000000, PX = 1000, SETEX = 1000000, PSETEX = 1000}
-- What would bring in real time, or lose a deadline, is an error rather than a surprise.
  local REFUSED = {GETEX = 1, EXPIRETIME = 1, PEXPIRETIME = 1, RENAME = 1, RENAMENX = 1, COPY = 1, MOVE = 1,
    RESTORE = 1, MSET = 1, GETSET = 1, FLUSHDB = 1, FLUSHALL = 1, SWAPDB = 1, EXAT = 1, PXAT = 1, GET = 1}

  local function int(x) return string.format('%.0f', x) end
  local function missing(key) return real.call('EXISTS', key) == 0 end
  local function forget(key) return real.call('ZREM', TTL, key) end
-- The server has checked the argument and set its own deadline, which is taken away again.
  local function note(key, deadline)
    if real.call('PERSIST', key) == 1 then real.call('ZADD', TTL, int(deadline), key) else forget(key) end
  end
  local function refuse(what) error('redistest: ' .. what .. ' has no virtual time') end

  local function run(call, name, ...)
    if type(name) ~= 'string' then return call(name, ...) end
    local cmd, arg = string.upper(name), {...}
    local key = arg[1]
    if cmd == 'TIME' then
      local s = math.floor(NOW / 1000000)
      return {int(s), int(NOW - s * 1000000)}
    elseif cmd == 'EXPIRE' or cmd == 'PEXPIRE' then
      if #arg > 2 then refuse(cmd .. ' with a condition') end
      local r = call(name, ...)
      if r == 1 then note(key, NOW + tonumber(arg[2]) * UNIT[cmd]) end
      return r
    elseif cmd == 'EXPIREAT' or cmd == 'PEXPIREAT' then
      if #arg > 2 then refuse(cmd .. ' with a condition') end
      local at = tonumber(arg[2])
      if not at or at ~= math.floor(at) then return call(name, ...) end
      if at * UNIT[cmd] <= NOW then forget(key) return call('DEL', key) end
      if missing(key) then return 0 end
      real.call('ZADD', TTL, int(at * UNIT[cmd]), key)
      return 1
    elseif cmd == 'TTL' or cmd == 'PTTL' then
      if missing(key) then return -2 end
      local at = real.call('ZSCORE', TTL, key)
      if not at then return -1 end
      local ms = math.floor((tonumber(at) - NOW) / 1000)
      if cmd == 'TTL' then return math.floor((ms + 500) / 1000) end
      return ms
    elseif cmd == 'PERSIST' then
      return forget(key)
    elseif cmd == 'DEL' or cmd == 'UNLINK' then
      for i = 1, #arg do forget(arg[i]) end
      return call(name, ...)
    elseif cmd == 'SET' or cmd == 'SETEX' or cmd == 'PSETEX' then
      local ttl, keep = nil, false
      if cmd ~= 'SET' then ttl = (tonumber(arg[2]) or 0) * UNIT[cmd] end
      for i = 3, cmd == 'SET' and #arg or 0 do
        local o = string.upper(arg[i])
        if REFUSED[o] then refuse('SET ' .. o) end
        if UNIT[o] then ttl = (tonumber(arg[i + 1]) or 0) * UNIT[o] end
        if o == 'KEEPTTL' then keep = true end
      end
      local r = call(name, ...)
      if type(r) ~= 'table' or r.err then return r end
      if ttl then note(key, NOW + ttl) elseif not keep then forget(key) end
      return r
    elseif REFUSED[cmd] and cmd ~= 'GET' then
      refuse(cmd)
    elseif string.find(cmd, 'REM') or string.find(cmd, 'POP') or string.find(cmd, 'DEL')
      or string.find(cmd, 'MOVE') or cmd == 'LTRIM' then
-- The last member takes the key with it, and the key its deadline.
      local r = call(name, ...)
      if key and missing(key) then forget(key) end
      return r
    end
    return call(name, ...)
  end

-- A key that was deleted from outside has left its deadline behind.
  for _, key in ipairs(KEYS) do if missing(key) then forget(key) end end

  return setmetatable({
    call = function(...) return run(real.call, ...) end,
    pcall = function(...) return run(real.pcall, ...) end,
  }, {__index = real})
end)(redis)
