#!lua
-- shard_renew: extend or end the shard leases that are still held under the given terms, each alone (TAKE-03).
--
-- Keys (standalone Redis, undeclared), below the key prefix: shardlease:<shard>, hash with owner and term;
--   shardowner:<shard>, hash with the last owner, marked as released when its lease is given back.
-- Arguments: ARGV[1] key prefix, ARGV[2] TTL ms (0: release), then pairs of shard and term.
-- Writes: the TTL, or the removal, of a lease whose term matches; nothing for another term.
-- Returns one item a pair: 1, or 0 when the lease is gone or has another term.
local results = {}
for i = 3, #ARGV, 2 do
  local lease = ARGV[1] .. 'shardlease:' .. ARGV[i]
  local held = redis.pcall('HGET', lease, 'term') == ARGV[i + 1]
  if held and ARGV[2] == '0' then
    redis.call('DEL', lease)
    redis.pcall('HSET', ARGV[1] .. 'shardowner:' .. ARGV[i], 'released', '1')
  elseif held then
    redis.call('PEXPIRE', lease, ARGV[2])
  end
  results[#results + 1] = held and 1 or 0
end
return results
