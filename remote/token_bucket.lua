-- Token bucket, exact: one decision for each of a list of costs, in order.
--
-- KEYS  1: the bucket, a hash
-- ARGV  1, 2: the rate in lowest terms, r tokens every p microseconds; 3: the burst
--       4: tokens to take back (> 0) or to charge into debt (< 0), 0 for none
--       5 ...: runs of costs: cost, count, cost, count, ...
-- State n: whole tokens, negative is a debt; f: a started token, in units of 1/p, 0 <= f < p; t: time of the last
--       refill, microseconds of this server's clock; L: the limit last applied, "r p burst"
-- Reply now (microseconds), how far the clock lags behind t, n and f after the call, admitted requests of each run
--
-- Invariants: n <= burst, and f = 0 when n = burst. Every number is an integer below 2^53, so every sum here is exact;
-- the limits for which this cannot be kept are refused before they get here. tostring() keeps only 14 digits, so
-- numbers go in and out through text(). A call that charges and takes back nothing writes nothing, unless it is refused
-- under another limit than the stored one, or the clock was set back.

local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

local function text(x) return string.format('%.0f', x) end

-- refill adds dt microseconds at r tokens per p to n + f/p tokens, up to cap.
local function refill(n, f, dt, r, p, cap)
  if n >= cap then return cap, 0 end
  -- The estimate of the time to fill is off by a relative 2^-52 at most: what is surely enough fills.
  if dt >= math.ceil((cap - n) * p / r * (1 + 1e-15)) + 1 then return cap, 0 end
  -- Steps so short that f + r * step stays an exact integer. Nearly always one.
  local longest = math.floor((9007199254740992 - p) / r)
  while dt > 0 do
    local step = math.min(dt, longest)
    local acc = f + r * step
    f = math.fmod(acc, p) -- not %, which in Lua 5.1 rounds
    n = n + (acc - f) / p
    if n >= cap then return cap, 0 end
    dt = dt - step
  end
  return n, f
end

local r, p, burst, credit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if not (r and p and burst and credit and #KEYS == 1) or r < 1 or p < 1 or burst < 1 then
  return redis.error_reply('ERR hybrid: bad arguments')
end
local limit = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]

local now = clock()
local lag, changed = 0, false
local n, f = burst, 0
local other = false -- the limit differs from the stored one

local s = redis.call('HMGET', KEYS[1], 'n', 'f', 't', 'L')
if s[1] or s[2] or s[3] or s[4] or redis.call('EXISTS', KEYS[1]) == 1 then
  local t
  n, f, t = tonumber(s[1] or ''), tonumber(s[2] or ''), tonumber(s[3] or '')
  local R, P, B = string.match(s[4] or '', '^(%d+) (%d+) (%d+)$')
  if not (n and f and t and R) then
    return redis.error_reply('FOREIGN not a token bucket of this version')
  end
  R, P, B = tonumber(R), tonumber(P), tonumber(B)
  if t > now then
    if t - now > 5000000 then
      -- The clock was set back: go on from here with the same level. It has to be stored, or a bucket that only
      -- denies would stand still until the old time comes round again.
      t, changed = now, true
    else
      lag, now = t - now, t -- another server's clock or a small correction: time stands still
    end
  end
  n, f = refill(n, f, now - t, R, P, B) -- by the limit that was in force until now
  if limit ~= s[4] then
    other = true
    f = math.min(p - 1, math.floor(f / P * p * (1 - 1e-15)))
  end
  if n >= burst then n, f = burst, 0 end
end

if credit ~= 0 then
  local before = n
  n = math.max(math.min(n + credit, burst), math.min(n, -burst))
  if n >= burst then f = 0 end
  changed = changed or n ~= before
end

local reply = {text(now), text(lag), '', ''}
for i = 5, #ARGV, 2 do
  local cost, count = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  if cost > 0 then
    local admitted = math.max(0, math.min(count, math.floor(n / cost)))
    n = n - admitted * cost
    -- A refusal stores a new limit: the wait that it is told is by that one, and so must be the refill until then.
    changed = changed or admitted > 0 or other and admitted < count
    count = admitted
  end
  reply[#reply + 1] = text(count)
end
reply[3], reply[4] = text(n), text(f)

if changed then
  redis.call('HSET', KEYS[1], 'n', reply[3], 'f', reply[4], 't', reply[1], 'L', limit)
  -- Until it is full again by this server's clock, when a missing bucket says the same, and a second for good measure.
  redis.call('PEXPIRE', KEYS[1], text(math.ceil(((burst - n) * p / r + lag) / 1000) + 1000))
end
return reply
