#!lua
-- shard_raise: complete the taking of a shard by a new owner: EpochBoundary and owner (TAKE-01 T2, TAKE-04, CON-39).
--
-- The caller holds the lease under `term` and, where the owner changed, read the end of the shard's log after that: whoever
-- had it before is fenced, so everything it wrote lies below that end. Boundaries that only the caller still knows (this Redis
-- lost its end) are restored first; an epoch never goes back and never gets another offset. An epoch that covers no record at
-- all (the log is empty) leaves no boundary behind. The lease goes on under a new term: where an AOF loses this call but not the
-- grant before it, the owner is fenced, takes the shard again, and restores the boundary.
--
-- Keys (standalone Redis, undeclared), below the key prefix: shardlease:<shard>, shardterm:<shard>, shardowner:<shard>,
--   shardepochs:<shard>; see shard_acquire.
-- Arguments: ARGV[1] key prefix, ARGV[2] shard, ARGV[3] lease term, ARGV[4] owner, ARGV[5] web address, ARGV[6] first offset of
--   the new epoch ('' where the owner is the same: nothing is raised), ARGV[7] the largest epoch there may be, then pairs of
--   epoch and first offset that the caller knows.
-- Writes: boundaries, owner and term; nothing when refused. Repeating it after it was done raises again, so callers ask
--   shard_acquire for the last owner first.
-- Returns {1, term, epoch, offset, ...} with the new term and all boundaries, or {0, detail} `fenced`, or {code, detail} `corrupt`.
local prefix, shard, term, owner, web, first, limit = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local epochs, record = prefix .. 'shardepochs:' .. shard, prefix .. 'shardowner:' .. shard
local held = redis.pcall('HGET', prefix .. 'shardlease:' .. shard, 'term')
if type(held) == 'table' then return { 'corrupt', 'lease of shard ' .. shard } end
if held ~= term then return { 0, held and ('lease term ' .. held) or 'no lease' } end
local raw, recorded = redis.pcall('HGETALL', epochs), redis.pcall('HGET', record, 'owner')
if raw.err or type(recorded) == 'table' then return { 'corrupt', 'epochs of shard ' .. shard } end
local known, newest, newest_first = {}, 0, 0
local function learn(epoch, offset)
  if known[epoch] and known[epoch] ~= offset then return false end
  known[epoch] = offset
  if tonumber(epoch) > newest then newest, newest_first = tonumber(epoch), tonumber(offset) end
  return true
end
for i = 1, #raw, 2 do learn(raw[i], raw[i + 1]) end
-- A first grant that knew nothing wrote epoch 1 at offset 0; a base epoch of the caller that is newer replaces it.
if ARGV[8] and known['1'] == '0' and not known[ARGV[8]] and #raw == 2 then
  known, newest, newest_first = {}, 0, 0
end
for i = 8, #ARGV, 2 do
  if not learn(ARGV[i], ARGV[i + 1]) then return { 'corrupt', 'epoch ' .. ARGV[i] .. ' of shard ' .. shard .. ' has two offsets' } end
end
if first ~= '' then
  if newest >= limit then return { 'corrupt', 'shard ' .. shard .. ' has used all epochs' } end
  if tonumber(first) < newest_first then
    return { 'corrupt', 'the log of shard ' .. shard .. ' ends before its last boundary' }
  end
  if tonumber(first) == 0 then known = {} end
  known[string.format('%d', newest + 1)] = first
end
local time = redis.call('TIME')
local renewed = math.max(tonumber(term) + 1, tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
redis.call('HSET', prefix .. 'shardlease:' .. shard, 'term', string.format('%.0f', renewed))
redis.call('SET', prefix .. 'shardterm:' .. shard, string.format('%.0f', renewed))
redis.call('DEL', epochs)
local reply = { 1, renewed }
for epoch, offset in pairs(known) do
  redis.call('HSET', epochs, epoch, offset)
  reply[#reply + 1], reply[#reply + 2] = tonumber(epoch), tonumber(offset)
end
redis.call('HSET', record, 'owner', owner, 'web', web, 'released', '0')
return reply
