#!lua
-- mark_page: COMMITTED for a page of messages, with compaction of the commit hash (COM-10 to COM-12, REG-18, REG-43).
--
-- Each request is atomic and independent of the others. The hash is rebuilt (DEL, HSET) with only what an ACK replay needs:
-- HDEL would leave it in the larger encoding for ever. It then expires at committed_at_ms + TTL; R, D and O never expire.
-- A second mark changes nothing and returns the outbox coordinates of the first.
--
-- Keys (standalone Redis, undeclared): the families of _commit.lua, each below the key prefix.
-- Arguments: ARGV[1] key prefix; ARGV[2] cmsgpack of one flat array:
--   dedup TTL ms, number of requests, then per request commit key, message_id, outbox "<partition>:<offset>".
-- Writes: commit hash with expiry, recovery index; the client_message_id owner where its time had to be extended.
-- Returns one item a request: 1; {'C', outbox} when it was committed before; {code, detail} with code
--   missing (no such commit), state (still R), corrupt or wrong_type: nothing was written.
local prefix = ARGV[1]
local A = cmsgpack.unpack(ARGV[2])
local ttl_ms = A[1]
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- @include _commit

local FIELDS = 3
local RECOVERY_ITEMS = 2000
local recovery = { 'ZREM', prefix .. 'msgrecovery' }

local function mark(at)
  local commit_key, message_id, outbox = A[at], A[at + 1], A[at + 2]
  local key = prefix .. 'msgcommit:' .. commit_key
  local raw = try('HMGET', key, 's', 'i', 'q', 't', 'k', 'o', 'g')
  if raw.err then return { 'wrong_type', 'msgcommit' } end
  local state, identity, seq, committed_at, ids, gc = raw[1], raw[2], raw[3], raw[4], raw[5], raw[7]
  if not state then return { 'missing', commit_key } end
  if not (STATES[state] and identity and seq and ids and #ids == 64 and tonumber(committed_at or '')) then
    return { 'corrupt', 'msgcommit ' .. commit_key }
  end
  if sub(ids, 1, 16) ~= message_id then return { 'corrupt', 'another message_id under ' .. commit_key } end
  if state == 'R' then return { 'state', 'no record yet of ' .. commit_key } end
  if state == 'C' then return { 'C', raw[6] or '' } end

  local ends_at = tonumber(committed_at) + ttl_ms
  if ends_at < now_ms + ttl_ms / 2 then
    -- Recovered late: an expiry that has passed would delete the proof against a second message at once.
    ends_at = now_ms + ttl_ms
    call('SET', down_key_of(commit_key), sub(ids, 49), 'PXAT', string.format('%.0f', ends_at))
  end
  call('DEL', key)
  if gc then
    call('HSET', key, 's', 'C', 'i', identity, 'q', seq, 't', committed_at, 'k', ids, 'o', raw[6] or outbox, 'g', gc)
  else
    call('HSET', key, 's', 'C', 'i', identity, 'q', seq, 't', committed_at, 'k', ids, 'o', raw[6] or outbox)
  end
  call('PEXPIREAT', key, string.format('%.0f', ends_at))
  recovery[#recovery + 1] = commit_key
  if #recovery >= RECOVERY_ITEMS then
    call(unpack(recovery))
    recovery = { 'ZREM', prefix .. 'msgrecovery' }
  end
  return 1
end

local index_type = redis.call('TYPE', prefix .. 'msgrecovery').ok
local results = {}
for i = 1, A[2] do
  if index_type == 'zset' or index_type == 'none' then
    results[i] = mark(3 + (i - 1) * FIELDS)
  else
    results[i] = { 'wrong_type', 'msgrecovery' }
  end
end
if #recovery > 2 then call(unpack(recovery)) end
return results
