-- Fixed window: counts the tokens of the current window; all are back at its end.
--
-- KEYS  1: the window, a hash; its name holds the length, so all calls for a key have the same
-- ARGV  1: length of a window in microseconds; 2: the limit
--       3 ...: runs of costs: cost, count, cost, count, ...
-- State s: start of the window, microseconds of this server's clock, a multiple of the length; c: tokens counted
-- Reply tokens left before this call, then for each run: admitted requests, wait of a refused one, time until
--       everything is available again (microseconds)
--
-- Invariants: c <= the largest limit applied in the window; a key lives until its window ends, and no write moves that
-- end. The window is chosen by the clock of this server: clients with clocks of their own would count in different
-- windows. A call that counts nothing writes nothing.

local length, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
if not (length and limit and #KEYS == 1) or length < 1 then
  return redis.error_reply('ERR hybrid: bad arguments')
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local lag, changed = 0, false
local start = now - math.fmod(now, length)
local count = 0

local h = redis.call('HMGET', KEYS[1], 's', 'c')
local exists = h[1] or h[2] or redis.call('EXISTS', KEYS[1]) == 1
if exists then
  local s, c = tonumber(h[1] or ''), tonumber(h[2] or '')
  if not (s and c) then return redis.error_reply('FOREIGN not a fixed window of this version') end
  if s > now + 5000000 then
    count, changed = c, true -- the clock was set back: what was counted counts now, and only until this window ends
  elseif s > now then
    lag, now, start, count = s - now, s, s, c -- a small correction: time stands still
  elseif s >= start then
    count = c
  end
end

local left = math.max(0, limit - count)
local reply = {left}
local wait = start + length - now + lag
for i = 3, #ARGV, 2 do
  local cost, n = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  if cost > 0 then
    n = math.min(n, math.floor(left / cost))
    left, count = left - n * cost, count + n * cost
    changed = changed or n > 0
  end
  reply[#reply + 1] = n
  reply[#reply + 1] = wait
  reply[#reply + 1] = wait
end

if changed then
  redis.call('HSET', KEYS[1], 's', start, 'c', count)
end
-- A key without a time to live (PERSIST, or made by hand) is healed by whoever comes across it.
if changed or (exists and redis.call('PTTL', KEYS[1]) == -1) then
  redis.call('PEXPIRE', KEYS[1], math.max(1, math.ceil((start + length - now + lag) / 1000)))
end
return reply
