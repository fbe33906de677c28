#!lua
-- shard_acquire: grant shard leases, each alone (TAKE-01, TAKE-03, design §5).
--
-- Granted when no lease lives or the live one has the same owner, whose former self the larger term then fences. Terms grow at
-- each grant. They follow Redis' clock in milliseconds, so that a term lost with the last second of an AOF is never given
-- to a second owner. The first grant of a shard also records that epoch 1 begins at offset 0.
--
-- Keys (standalone Redis, undeclared), below the key prefix:
--   shardlease:<shard>   hash owner, term; PEXPIRE TTL
--   shardterm:<shard>    string, the last term granted; never expires
--   shardepochs:<shard>  hash epoch -> first log offset of that epoch; never expires (TAKE-04)
-- Arguments: ARGV[1] key prefix, ARGV[2] owner, ARGV[3] TTL ms, then the shards.
-- Writes: the three keys of each granted shard; nothing for a refused one.
-- Returns one item a shard: {1, term} or {0, owner, remaining ms} or {code, detail} `corrupt`.
local prefix, owner, ttl_ms = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function acquire(shard)
  local lease, counter, epochs = prefix .. 'shardlease:' .. shard, prefix .. 'shardterm:' .. shard, prefix .. 'shardepochs:' .. shard
  local holder = redis.pcall('HGET', lease, 'owner')
  local last, known = redis.pcall('GET', counter), redis.pcall('HLEN', epochs)
  if type(holder) == 'table' or type(last) == 'table' or type(known) == 'table' or not tonumber(last or '0') then
    return { 'corrupt', 'lease of shard ' .. shard }
  end
  if holder and holder ~= owner then return { 0, holder, redis.call('PTTL', lease) } end
  local term = math.max(tonumber(last or '0') + 1, now_ms)
  local text = string.format('%.0f', term)
  redis.call('SET', counter, text)
  redis.call('HSET', lease, 'owner', owner, 'term', text)
  redis.call('PEXPIRE', lease, ttl_ms)
  if known == 0 then redis.call('HSET', epochs, '1', '0') end
  return { 1, term }
end

local results = {}
for i = 4, #ARGV do results[i - 3] = acquire(ARGV[i]) end
return results
