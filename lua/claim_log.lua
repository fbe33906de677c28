#!lua
-- claim_log: record which cluster and which topics the keys of an application belong to (LOG-02), or tell what was recorded.
--
-- Keys: KEYS[1] <prefix>topics, hash: `cluster` -> cluster id, `topic:<name>` -> "<topic id> <partitions>".
-- Arguments: ARGV pairs of field and value.
-- Writes: the fields that are not recorded yet, and none of them where another cluster is recorded.
-- Returns the whole hash, flat.
local key = KEYS[1]
local cluster = redis.call('HGET', key, 'cluster')
local same = true
for i = 1, #ARGV, 2 do
  if ARGV[i] == 'cluster' and cluster and cluster ~= ARGV[i + 1] then same = false end
end
if same then
  for i = 1, #ARGV, 2 do redis.call('HSETNX', key, ARGV[i], ARGV[i + 1]) end
end
return redis.call('HGETALL', key)
