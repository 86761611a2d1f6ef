-- Token bucket with leases, exact. Decides a list of costs in order, and lends tokens that a process may spend without
-- asking. docs/protocol.md explains it; the numbers of the steps below are those of that page.
--
-- KEYS  1: the bucket, a hash
-- ARGV  1, 2: the rate in lowest terms, r tokens every p microseconds; 3: the burst
--       4: slack, tokens by which the bound may be exceeded
--       5: tokens to take back (> 0) or to charge, if need be into debt (< 0)
--       6: id of the lease, or '' for none; only with an id:
--          7: sequence number; 8: tokens used in all; 9: tokens held; 10: tokens wanted after this; 11: demand
--          12: epoch and 13: expiry of the lease as last told, 0 if never
--          14: most tokens lent in all; 15: life of a lease in microseconds; 16: the level below which it is dry
--       then runs of costs: cost, count, cost, count, ...
-- State n: whole tokens, negative is a debt; f: a started token, in units of 1/p, 0 <= f < p; t: time of the last
--       refill, microseconds of this server's clock; L: the limit last applied, "r p burst"
--       e: epoch, new whenever the hash is made; z: 1 if a reset made it, 2 if a lease was lost in it
--       o: tokens lent, sum over the entries; d: demand, likewise; c: entries with demand or tokens
--       m: the largest burst that was ever lowered
--       x: entries are not looked at before; y: no entry expires after
--       @id: an entry: sequence number, granted in all less given back, used in all, demand, expiry
-- Reply status (0 ok, 1 stale, 2 reset, 3 loss), now, lag of this clock behind t, epoch, granted, expiry (0 if not
--       renewed), n, f, tokens lent, entries, scarce (0 or 1), admitted requests of each run
--
-- Invariants, at every instant: n <= max(0, burst - max(0, o - slack)), f = 0 where n is at that cap, and what the
-- processes hold is never more than o. So no more than burst + slack can be spent at once, nor burst + slack + rate * W
-- in a time W. All numbers are integers below 2^53 and all sums exact. Redis takes such numbers as they are, in commands
-- and in the reply; tostring() would keep only 14 digits. A call that charges, lends, settles and ends nothing writes
-- nothing, unless it is refused under another limit than the stored one, or the clock was set back.

local unpack = table.unpack or unpack

local GRACE = 100000 -- microseconds by which a lease lives longer here than its holder may think
local PAUSE = 50000 -- microseconds between two looks at all leases

local r, p, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local slack, credit, id = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
if not (r and p and burst and slack and credit and id and #KEYS == 1) or r < 1 or p < 1 or burst < 1 then
  return redis.error_reply('ERR hybrid: bad arguments')
end
local runs = 7
local seq, used, held, want, demand, epoch, expiry, most, life, dry
if id ~= '' then
  seq, used, held, want, demand = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
  epoch, expiry, most, life, dry = tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15]), tonumber(ARGV[16])
  if not (seq and used and held and want and demand and epoch and expiry and most and life and dry) then
    return redis.error_reply('ERR hybrid: bad arguments')
  end
  runs = 17
end
local limit = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]

-- The state of a bucket that was never used, or is full again and gone.
local time = redis.call('TIME')
local now, lag = time[1] * 1000000 + time[2], 0
local n, f, t = burst, 0, now
local R, P, B = r, p, burst -- the stored limit
local e, z, m = now, 0, 0
local o, d, c, x, y = 0, 0, 0, 0, 0
local entry = false
local changed, leased = false, false
local other = false -- the limit differs from the stored one

local s = redis.call('HMGET', KEYS[1], 'n', 'f', 't', 'L', 'e', 'm', 'o')
if s[1] or s[3] or s[5] or redis.call('EXISTS', KEYS[1]) == 1 then
  n, f, t, e, m = tonumber(s[1] or ''), tonumber(s[2] or ''), tonumber(s[3] or ''), tonumber(s[5] or ''), tonumber(s[6] or 0)
  if s[4] ~= limit then
    local a, b, g = string.match(s[4] or '', '^(%d+) (%d+) (%d+)$')
    R, P, B, other = tonumber(a or ''), tonumber(b or ''), tonumber(g or ''), true
  end
  if not (n and f and t and e and R) then
    return redis.error_reply('FOREIGN not a token bucket of this version')
  end
  if s[7] then -- only a bucket that has lent has the rest
    local l = redis.call('HMGET', KEYS[1], 'd', 'c', 'x', 'y', 'z', '@' .. id)
    o, d, c, x, y = tonumber(s[7]), tonumber(l[1] or 0), tonumber(l[2] or 0), tonumber(l[3] or 0), tonumber(l[4] or 0)
    z, entry, leased = tonumber(l[5] or 0), l[6], true
  end
end

-- cap is what the bucket may hold of a burst while o tokens are lent.
local function cap(size) return math.max(0, size - math.max(0, o - slack)) end

-- refill brings the bucket to the time to, by the stored limit and by what is lent in the meantime.
local function refill(to)
  local dt, top = to - t, cap(B)
  t = math.max(t, to)
  if n >= top then
    n, f = top, 0
  elseif dt > 0 then
    -- The estimate of the time to fill is off by a relative 2^-52 at most: what is surely enough fills.
    if dt >= math.ceil((top - n) * P / R * (1 + 1e-15)) + 1 then n, f = top, 0 return end
    -- Steps so short that f + R * step stays an exact integer. Nearly always one.
    local longest = math.floor((9007199254740992 - P) / R)
    while dt > 0 do
      local step = math.min(dt, longest)
      local acc = f + R * step
      f = math.fmod(acc, P) -- not %, which in Lua 5.1 rounds
      n = n + (acc - f) / P
      if n >= top then n, f = top, 0 return end
      dt = dt - step
    end
  end
end

-- What only leases need. Making it takes long enough to spare the calls that have none.
local write, dead, split, join, entries, send
if leased or id ~= '' then
  write, dead = {}, {}

  function split(text) -- sequence, granted, used, demand, expiry
    local q, g, u, w, at = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
    return tonumber(q), tonumber(g), tonumber(u), tonumber(w), tonumber(at)
  end

  function join(q, g, u, w, at) return string.format('%.0f %.0f %.0f %.0f %.0f', q, g, u, w, at) end

  function entries() -- all of them: name, sequence, granted, used, demand, expiry
    local all, list = redis.call('HGETALL', KEYS[1]), {}
    for i = 1, #all, 2 do
      if string.sub(all[i], 1, 1) == '@' then
        local q, g, u, w, at = split(all[i + 1])
        if q then list[#list + 1] = {all[i], q, g, u, w, at} end
      end
    end
    return list
  end

  function send(command, list) -- in parts, because a function takes a few thousand arguments at most
    for i = 1, #list, 1000 do redis.call(command, KEYS[1], unpack(list, i, math.min(i + 999, #list))) end
  end
end

-- 1  Time. A clock that was set back moves the whole bucket with it and mints nothing. It has to be stored: a bucket
--    that only denies would stand still until the old time comes round again.
if t > now then
  if t - now > 5000000 then
    local shift = now - t
    if x > 0 then
      for _, v in ipairs(entries()) do
        v[6] = math.max(0, v[6] + shift)
        write[#write + 1] = v[1]
        write[#write + 1] = join(v[2], v[3], v[4], v[5], v[6])
        if v[1] == '@' .. id then entry = write[#write] end
      end
      x = math.max(1, x + shift)
    end
    if y > 0 then y = math.max(1, y + shift) end
    if expiry and expiry > 0 then expiry = math.max(1, expiry + shift) end
    t, changed = now, true
  else
    lag, now = t - now, t -- another server's clock or a small correction: time stands still
  end
end

-- 3  Refill before anything is settled: what was lent until now kept the bucket from filling until now. Leases that
--    have ended are taken out one by one, in the order in which they ended, each after a refill up to its end.
if x > 0 and now >= x then
  local list, first = entries(), 0
  table.sort(list, function(a, b) return a[6] < b[6] end)
  for _, v in ipairs(list) do
    if v[6] <= now then
      refill(v[6])
      o, d = o - (v[3] - v[4]), d - v[5]
      if v[3] > v[4] or v[5] > 0 then c = c - 1 end
      dead[#dead + 1] = v[1]
      if v[1] == '@' .. id then entry = false end
    elseif first == 0 then
      first = v[6]
    end
  end
  -- Not again for a moment: many short leases that end one by one must not make each call read all of them. What has
  -- ended in the meantime only counts as lent a little longer.
  if first > 0 then x = math.max(first, now + PAUSE) else x = 0 end
  changed = true
end
refill(now)
if other then -- whole tokens are kept, a started one is scaled down
  f = math.min(p - 1, math.floor(f / P * p * (1 - 1e-15)))
  if B > burst then m = math.max(m, B) end
end

-- 4  The lease of the caller.
local status, q, g, u, w, at = 0, 0, 0, 0, 0, 0
local h = 0 -- tokens outstanding for it
if id ~= '' then
  local known = epoch ~= 0
  if entry then q, g, u, w, at = split(entry) end
  if entry and seq <= q then
    status = 1 -- late or repeated: a newer request was taken already
  elseif known and now >= expiry and (not entry or epoch ~= e or used + held > g) then
    -- The lease has ended: nothing was lost, and nothing is left of it. If there is an entry all the same, a late copy of
    -- the first request has made it.
    status = 1
  elseif known and epoch ~= e and z == 1 then
    status = 2
  end
  if status ~= 0 then
    return {status, now, lag, e, 0, 0, n, f, o, c, 0}
  end
  if entry then
    if g > u or w > 0 then c = c - 1 end -- counted again below
    local spent = math.max(0, math.min(used - u, g - u))
    h = g - u - spent -- one by one: the Lua of miniredis does not evaluate all of a list before it assigns
    o, u = o - spent, u + spent
    changed = changed or spent > 0
  end
  if known and (epoch ~= e or used + held > g) then
    -- The bucket does not know what the caller holds: it was lost, or went back in time, and meanwhile may have filled
    -- the place of it. What is held is written down again, and the first time the bucket starts from nothing.
    o, h, g, u = o + held - h, held, used + held, used
    if z ~= 2 then n, f, z = math.min(n, 0), 0, 2 end
    status, changed = 3, true
  end
  d, w = d - w + demand, demand
end
local top = cap(burst)
if n >= top then n, f = top, 0 end

-- Tokens lent that the caller does not hold any more come back: it gave them up before it asked, or they were granted
-- by a reply that it never got and will not accept now. Before the costs, so that nobody is refused for their sake.
if h > 0 and held < h then
  local back = h - held
  o, g, h = o - back, g - back, held
  n, changed = math.min(n + back, math.max(n, cap(burst))), true
  if n >= cap(burst) then f = 0 end
end

-- 5  Tokens that come back, or are charged after the fact.
if credit ~= 0 then
  local before = n
  n = math.max(math.min(n + credit, math.max(n, cap(burst))), math.min(n, -burst))
  if n >= cap(burst) then f = 0 end
  changed = changed or n ~= before
end

-- 6  Costs, one after another as if each had come alone.
local admitted, scarce = {}, false
for i = runs, #ARGV, 2 do
  local cost, count = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local k = count
  if cost > 0 then
    k = math.max(0, math.min(count, math.floor(n / cost)))
    n = n - k * cost
    -- A refusal stores a new limit: the wait that it is told is by that one, and so must be the refill until then.
    changed = changed or k > 0 or other
    scarce = scarce or k < count
  end
  admitted[#admitted + 1] = k
end

-- 7  The next lease.
local renewed = 0
if id ~= '' then
  if want > h then
    -- A share for this process and one for whoever comes next, or one by demand.
    local share = n / (c + 2)
    if d > 0 then share = math.max(share, n * w / d) end
    local part = math.max(0, math.floor(math.min(want - h, n, share)))
    local lent = math.max(0, math.min(part, most - o))
    -- 8  Cut short for want of tokens, not by the bound on all leases.
    scarce = scarce or part < want - h and lent == part and n < dry
    if lent > 0 then n, o, g, h, changed = n - lent, o + lent, g + lent, h + lent, true end
  end
  -- The entry is written when something changed, to renew what is held, and now and then to say that more is wanted.
  if h > 0 or changed or (w > 0 and (not entry or at - now < life / 2)) then
    at = math.max(at, now + life + GRACE)
    renewed, changed, leased = at, true, true
    write[#write + 1] = '@' .. id
    write[#write + 1] = join(seq, g, u, w, at)
    if x == 0 or at < x then x = at end
    y = math.max(y, at)
  end
  if h > 0 or w > 0 then c = c + 1 end
end

-- 9  Write. The key lives until the bucket is full and every lease has ended: only then does a missing key say the
--    same. What is lent keeps its place free until the lease has ended, so that much may have to be refilled after the
--    last one. If other limits are in use it must be full by the largest of them: a key that is gone is full for
--    everybody. And a second longer, so that a holder's last request finds it.
if changed then
  if leased then send('HDEL', dead) end
  redis.call('HSET', KEYS[1], 'n', n, 'f', f, 't', now)
  if other or not s[1] then redis.call('HSET', KEYS[1], 'L', limit, 'e', e) end
  if other and m > 0 then redis.call('HSET', KEYS[1], 'm', m) end
  if leased then
    redis.call('HSET', KEYS[1], 'o', o, 'd', d, 'c', c, 'x', x, 'y', y)
    if z > 0 then redis.call('HSET', KEYS[1], 'z', z) end
    send('HSET', write)
  end
  local needed = math.ceil(math.max((math.max(burst, m) - n) * p / r, y - now + o * p / r)) + lag
  redis.call('PEXPIRE', KEYS[1], math.ceil(math.min(needed, 9007199254740992) / 1000) + 1000)
end

-- 10
return {status, now, lag, e, g, renewed, n, f, o, c, scarce and 1 or 0, unpack(admitted)}
