#!lua
-- shard_acquire: grant shard leases, each alone (TAKE-01, TAKE-03, design §5).
--
-- Granted when no lease lives, when the live one is of this very process, or, where the caller may replace (at its start), when
-- it has the same owner, whose former self the larger term then fences. Terms grow at each grant. They follow Redis' clock in
-- milliseconds, so that a term lost with the last second of an AOF is never given to a second owner. The first grant of a
-- shard also records that epoch 1 begins at offset 0, and the owner; a change of owner is completed by shard_raise.
--
-- Keys (standalone Redis, undeclared), below the key prefix:
--   shardlease:<shard>   hash owner, instance, web, term; PEXPIRE TTL
--   shardterm:<shard>    string, the last term granted; never expires
--   shardowner:<shard>   hash owner (the last one that completed taking it), web, released ('1' after a release); never expires
--   shardepochs:<shard>  hash epoch -> first log offset of that epoch; never expires (TAKE-04)
-- Arguments: ARGV[1] key prefix, ARGV[2] owner, ARGV[3] instance (one process), ARGV[4] its web address, ARGV[5] '1' when a
--   lease of the same owner may be replaced, ARGV[6] TTL ms, then the shards.
-- Writes: the keys of each granted shard; nothing for a refused one.
-- Returns one item a shard: {1, term, last owner or ''} or {0, owner, remaining ms, instance} or {code, detail} `corrupt`.
local prefix, owner, instance, web, replace, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function acquire(shard)
  local lease, counter, epochs = prefix .. 'shardlease:' .. shard, prefix .. 'shardterm:' .. shard, prefix .. 'shardepochs:' .. shard
  local record = prefix .. 'shardowner:' .. shard
  local held, known = redis.pcall('HMGET', lease, 'owner', 'instance'), redis.pcall('HLEN', epochs)
  local last, recorded = redis.pcall('GET', counter), redis.pcall('HGET', record, 'owner')
  if held.err or type(last) == 'table' or type(known) == 'table' or type(recorded) == 'table' or not tonumber(last or '0') then
    return { 'corrupt', 'lease of shard ' .. shard }
  end
  if held[1] and (held[1] ~= owner or (held[2] ~= instance and replace ~= '1')) then
    return { 0, held[1], redis.call('PTTL', lease), held[2] or '' }
  end
  local term = math.max(tonumber(last or '0') + 1, now_ms)
  local text = string.format('%.0f', term)
  redis.call('SET', counter, text)
  redis.call('HSET', lease, 'owner', owner, 'instance', instance, 'web', web, 'term', text)
  redis.call('PEXPIRE', lease, ttl_ms)
  if known == 0 then redis.call('HSET', epochs, '1', '0') end
  if not recorded or recorded == owner then redis.call('HSET', record, 'owner', owner, 'web', web, 'released', '0') end
  return { 1, term, recorded or '' }
end

local results = {}
for i = 7, #ARGV do results[i - 6] = acquire(ARGV[i]) end
return results
