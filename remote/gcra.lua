-- GCRA, the generic cell rate algorithm (ITU-T I.371, virtual scheduling): a token bucket kept as one time.
--
-- KEYS  1: the limiter, a string
-- ARGV  1: r, the tokens per p microseconds of the rate in lowest terms
--       2, 3: the burst as a time: microseconds and units of 1/r microsecond
--       4 ...: runs of costs: the cost as a time (microseconds, units of 1/r), count, ...
-- State "tat frac": the theoretical arrival time, when everything will be available again, in microseconds of this
--       server's clock and units of 1/r microsecond
-- Reply now (microseconds), how far the clock lags behind, the room after the call (microseconds, units of 1/r),
--       admitted requests of each run
--
-- Invariants: tat - now <= burst; 0 <= frac < r. Times are integers below 2^53, so every sum is exact. A call that
-- charges nothing writes nothing.

local r, bus, bfr = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if not (r and bus and bfr and #KEYS == 1) or r < 1 then
  return redis.error_reply('ERR hybrid: bad arguments')
end

-- sub is a - b for times in microseconds and units of 1/r.
local function sub(aus, afr, us, fr)
  if afr < fr then return aus - us - 1, afr + r - fr end
  return aus - us, afr - fr
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local lag, changed = 0, false
local rus, rfr = bus, bfr -- the room: the burst less what tat lies ahead of now

local s = redis.call('GET', KEYS[1])
if s then
  local tat, frac = string.match(s, '^(%d+) (%d+)$')
  if not tat then return redis.error_reply('FOREIGN not a GCRA of this version') end
  tat, frac = tonumber(tat), math.min(tonumber(frac), r - 1)
  rus, rfr = sub(now + bus, bfr, tat, frac)
  if rus < 0 then
    -- tat is further ahead than a burst: the clock went back, or the burst was lowered. Nothing is available.
    if rus < -5000000 then
      rfr, changed = 0, true -- set back: go on from here, and store that
    else
      lag, now = -rus, now - rus -- another server's clock or a small correction: time stands still
    end
    rus = 0
  elseif rus > bus or (rus == bus and rfr > bfr) then
    rus, rfr = bus, bfr -- tat has passed
  end
end

local reply = {now, lag, 0, 0}
for i = 4, #ARGV, 3 do
  local us, fr, count = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local admitted = 0
  if us == 0 and fr == 0 then
    admitted = count
  else
    while admitted < count and (rus > us or (rus == us and rfr >= fr)) do
      rus, rfr = sub(rus, rfr, us, fr)
      admitted = admitted + 1
    end
    changed = changed or admitted > 0
  end
  reply[#reply + 1] = admitted
end
reply[3], reply[4] = rus, rfr

if changed then
  local us, fr = sub(bus, bfr, rus, rfr)
  local ttl = math.ceil((us + 1 + lag) / 1000)
  redis.call('SET', KEYS[1], string.format('%.0f %.0f', now + us, fr), 'PX', ttl)
end
return reply
