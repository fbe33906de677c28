#!lua
-- shard_owners: who holds each shard now, and who had it last (TAKE-06). Reads only.
--
-- Keys (standalone Redis, undeclared), below the key prefix: shardlease:<shard>, shardowner:<shard>; see shard_acquire.
-- Arguments: ARGV[1] key prefix, then the shards.
-- Writes: nothing.
-- Returns one item a shard: {owner, instance, web, term text, remaining ms, last owner, last web, released}; '' and 0 where
--   there is none. Damaged keys read as none: nobody can take such a shard, shard_acquire says why.
local results = {}
for i = 2, #ARGV do
  local lease = ARGV[1] .. 'shardlease:' .. ARGV[i]
  local now = redis.pcall('HMGET', lease, 'owner', 'instance', 'web', 'term')
  local last = redis.pcall('HMGET', ARGV[1] .. 'shardowner:' .. ARGV[i], 'owner', 'web', 'released')
  if now.err then now = {} end
  if last.err then last = {} end
  results[i - 1] = {
    now[1] or '', now[2] or '', now[3] or '', now[4] or '0', now[1] and redis.call('PTTL', lease) or 0,
    last[1] or '', last[2] or '', last[3] == '1' and 1 or 0,
  }
end
return results
