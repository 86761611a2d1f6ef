-- Sliding counter: two windows of counts; the older one fades out in proportion to the time that has passed.
--
-- KEYS  1: the counter, a hash; its name holds the length, so all calls for a key have the same
-- ARGV  1: length of a window in units; 2: the limit; 3: the unit in microseconds (1 or 1000)
--       4 ...: runs of costs: cost, count, cost, count, ...
-- State s: start of the current window in units of this server's clock, a multiple of the length; c: tokens counted in
--       it; b: tokens counted in the window before
-- Reply tokens left before this call, then for each run: admitted requests, wait of a refused one, time until
--       everything is available again (microseconds)
--
-- A cost fits if b * (length - x) + (c + cost) * length <= limit * length, x being the time since s. All of it in
-- integers: limit * length stays below 2^53, which is why the unit is a millisecond for windows of a second and more.
-- A call that counts nothing writes nothing.

local length, limit, unit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if not (length and limit and unit and #KEYS == 1) or length < 1 or unit < 1 then
  return redis.error_reply('ERR hybrid: bad arguments')
end

-- div is floor(a / b) for a >= 0, exactly.
local function div(a, b) return (a - math.fmod(a, b)) / b end

local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
local lag, changed = 0, false
local now = div(us, unit)
local start = now - math.fmod(now, length)
local c, b = 0, 0

local h = redis.call('HMGET', KEYS[1], 's', 'c', 'b')
if h[1] or h[2] or h[3] or redis.call('EXISTS', KEYS[1]) == 1 then
  local s, C, B = tonumber(h[1] or ''), tonumber(h[2] or ''), tonumber(h[3] or '')
  if not (s and C and B) then return redis.error_reply('FOREIGN not a sliding counter of this version') end
  if s * unit > us + 5000000 then
    -- The clock was set back: what was counted counts as if now, and fades from here. All of it, up to the limit:
    -- nobody knows how much of the older window had faded.
    c, changed = math.max(C, math.min(C + B, limit)), true
  elseif s > now then
    lag, us, now, start, c, b = s * unit - us, s * unit, s, s, C, B -- a small correction: time stands still
  elseif s >= start then
    c, b = C, B
  elseif s >= start - length then
    b = C
  end
end

local x = now - start
local function left() return math.max(0, div(math.max(0, limit * length - b * (length - x) - c * length), length)) end

-- wait is the time until cost tokens fit.
local function wait(cost)
  local units
  if c + cost <= limit then -- once the old window has faded far enough
    units = length - div((limit - c - cost) * length, b) - x
  else -- in the next window, once this one has
    units = length - x + length - div((limit - cost) * length, c)
  end
  return (now + units) * unit - us + lag
end

local reply = {left()}
for i = 4, #ARGV, 2 do
  local cost, n = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local admitted = n
  if cost > 0 then
    admitted = math.min(n, div(left(), cost))
    c = c + admitted * cost
    changed = changed or admitted > 0
  end
  local reset = 0
  if c > 0 then reset = (start + 2 * length) * unit - us + lag
  elseif b > 0 then reset = (start + length) * unit - us + lag end
  reply[#reply + 1] = admitted
  reply[#reply + 1] = admitted < n and wait(cost) or 0
  reply[#reply + 1] = reset
end

if changed then
  redis.call('HSET', KEYS[1], 's', start, 'c', c, 'b', b)
  redis.call('PEXPIRE', KEYS[1], math.max(1, math.ceil(((start + 2 * length) * unit - us + lag) / 1000)))
end
return reply
