-- Sliding log: remembers when each token was admitted; at most the limit in any window (t - length, t].
--
-- KEYS  1: the log, a sorted set; its name holds the length, so all calls for a key have the same
-- ARGV  1: length of the window in microseconds; 2: the limit
--       3 ...: runs of costs: cost, count, cost, count, ...
-- State one member for each admitted token, numbered from 0 in a fixed width; its score is the time of the admission
--       in microseconds of this server's clock
-- Reply tokens left before this call, then for each run: admitted requests, wait of a refused one, time until
--       everything is available again (microseconds)
--
-- Invariants: scores rise with the numbers, so a number is used once while it is in the log; at most the limit are
-- live. Numbers and not times are the members: two tokens of the same microsecond would be one member. An entry aged
-- exactly the length is gone. A call that admits nothing writes nothing: it does not even trim.

local length, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
if not (length and limit and #KEYS == 1) or length < 1 then
  return redis.error_reply('ERR hybrid: bad arguments')
end

-- add puts members with their scores into the set, a thousand at a time: unpack has a limit.
local unpack = table.unpack or unpack
local pending = {}
local function flush()
  if #pending > 0 then redis.call('ZADD', KEYS[1], unpack(pending)) end
  pending = {}
end
local function add(member, score)
  pending[#pending + 1] = score
  pending[#pending + 1] = member
  if #pending >= 2000 then flush() end
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local lag, changed = 0, false
local newest, number = nil, 0

local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
if last[1] then
  newest, number = tonumber(last[2]), tonumber(last[1])
  if not (number and #last[1] == 16) then return redis.error_reply('FOREIGN not a sliding log of this version') end
  number = number + 1
  if newest > now + 5000000 then
    -- The clock was set back: the whole log moves with it, or nobody would be admitted until the old time is back.
    local all = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
    for i = 1, #all, 2 do add(all[i], tonumber(all[i + 1]) - newest + now) end
    flush()
    newest, changed = now, true
  elseif newest > now then
    lag, now = newest - now, newest -- a small correction: time stands still
  end
end

local since = string.format('(%.0f', now - length)
local live = 0
if newest then live = redis.call('ZCOUNT', KEYS[1], since, '+inf') end
local gone = newest and redis.call('ZCARD', KEYS[1]) - live or 0

-- wait is the time until cost tokens fit when count are live: until enough of the oldest have left.
local function wait(cost, count)
  local i = count + cost - limit -- so many must leave
  if i <= 0 then return 0 end
  local oldest = now -- the i-th oldest may be one of this very call
  if i <= live then
    oldest = tonumber(redis.call('ZRANGE', KEYS[1], gone + i - 1, gone + i - 1, 'WITHSCORES')[2])
  end
  return oldest + length - now + lag
end

local count = live
local reply = {math.max(0, limit - count)}
for i = 3, #ARGV, 2 do
  local cost, n = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local admitted = n
  if cost > 0 then
    admitted = math.max(0, math.min(n, math.floor((limit - count) / cost)))
    count = count + admitted * cost
    if admitted > 0 then newest = now end
  end
  reply[#reply + 1] = admitted
  reply[#reply + 1] = admitted < n and wait(cost, count) or 0
  reply[#reply + 1] = count > 0 and newest + length - now + lag or 0
end

if count > live then
  for _ = 1, count - live do
    add(string.format('%016.0f', number), now)
    number = number + 1
  end
  flush()
  -- Not before: after a first write Redis lets a script go on though the memory is full.
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - length)
  changed = true
end
if changed then
  redis.call('PEXPIRE', KEYS[1], math.max(1, math.ceil((newest + length - now + lag) / 1000)))
end
return reply
