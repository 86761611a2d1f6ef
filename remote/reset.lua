-- Makes a token bucket full and voids all leases of it.
--
-- KEYS  1: the bucket
-- ARGV  1, 2: the rate in lowest terms, r tokens every p microseconds; 3: the burst
-- Reply 1 if there was a bucket, else 0, in a list
--
-- While leases may be out the bucket stays as a full hash of a new epoch, marked as reset: their holders are told to
-- drop what they have. Were it just deleted, they would take it for lost. It goes when the last of them has ended.

local s = redis.pcall('HMGET', KEYS[1], 't', 'e', 'y')
local t, e, y = tonumber(s[1] or ''), tonumber(s[2] or ''), tonumber(s[3] or '0')
if s.err or not (t and e) then return {redis.call('DEL', KEYS[1])} end -- nothing, or nothing of ours
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local lag = math.max(0, t - now)
if lag > 5000000 then y, lag = y - lag, 0 end -- the clock was set back, and the leases move with it
now = now + lag
redis.call('DEL', KEYS[1])
if y > now then
  redis.call('HSET', KEYS[1], 'n', ARGV[3], 'f', 0, 't', now, 'L', ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3],
    'e', math.max(now, e + 1), 'z', 1, 'o', 0, 'd', 0, 'c', 0, 'x', 0, 'y', y)
  redis.call('PEXPIRE', KEYS[1], math.ceil((y - now + lag) / 1000) + 1000)
end
return {1}
