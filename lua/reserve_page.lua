#!lua
-- reserve_page: deduplicate, allocate conversation_seq and record a page of messages (COM-05, COM-06, COM-15).
--
-- Requests are judged one after the other; each is atomic and independent of the others. A fresh one goes straight to D
-- (RECORDED): every check comes before INCR, so that a refused request uses no sequence. An existing one is returned as
-- it is, an old R is continued first. In step form 'R' fresh requests stop at RESERVED (for fault tests).
--
-- Keys (standalone Redis, undeclared): the families of _commit.lua, each below the key prefix.
-- Arguments: ARGV[1] key prefix; ARGV[2] cmsgpack of one flat array:
--   dedup TTL ms, target state 'D' or 'R', number of requests, then per request
--     commit key, conversation key, identity digest, message_id || last_activity_id || trace_id || conversation_id,
--     committed_at_ms (text), record before and after the 8 bytes of conversation_seq, outbox meta.
-- Writes: sequence, commit hash, record, client_message_id owner, recovery index.
-- Returns one item a request: the conversation_seq of a fresh one (a number);
--   {state, seq, ids, committed_at_ms, record or '', outbox meta or '', outbox or ''} of an existing one (state C has no record);
--   {conflict} when the client_message_id belongs to another message or conversation;
--   {code, detail} with code `corrupt` or `wrong_type` when nothing was written because of damage.
local prefix = ARGV[1]
local A = cmsgpack.unpack(ARGV[2])
local ttl_ms, target = A[1], A[2]
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- @include _commit

local FIELDS = 8
local RECOVERY_ITEMS = 2000 -- arguments a command: unpack has a stack limit
local recovery = { 'ZADD', prefix .. 'msgrecovery' }

local function existing(commit_key, fields)
  local record = ''
  if fields.s ~= 'C' and not (fields.s == 'R' and target == 'R') then
    local code, detail
    record, code, detail = record_of(commit_key, fields)
    if not record then return { code, detail } end
  end
  return { fields.s, tonumber(fields.q), fields.k, tonumber(fields.t), record, fields.x or '', fields.o or '' }
end

-- The owner entry ends with the committed hash. Where little of that time is left (a commit recovered late), it counts from now.
local function dedup_until(committed_at_ms)
  local at = committed_at_ms + ttl_ms
  if at < now_ms + ttl_ms / 2 then at = now_ms + ttl_ms end
  return at
end

-- Returns the last allocated sequence of a conversation, or nil, code, detail. Reads only.
local function last_sequence(conversation_key)
  local raw = try('GET', prefix .. 'msgcseq:' .. conversation_key)
  if type(raw) == 'table' then return nil, 'wrong_type', 'msgcseq' end
  local last = tonumber(raw or '0')
  if not last or last < 0 or last >= MAX_SEQ or last % 1 ~= 0 then return nil, 'corrupt', 'msgcseq' end
  -- A counter that went back would give a sequence to a second message (REG-29).
  local above = try('ZCOUNT', prefix .. 'msghistory:' .. conversation_key, '(' .. (raw or '0'), '+inf')
  if type(above) == 'table' then return nil, 'wrong_type', 'msghistory' end
  if above > 0 then return nil, 'corrupt', 'records above msgcseq of ' .. conversation_key end
  return last
end

local function reserve(at)
  local commit_key, conversation_key, identity, ids = A[at], A[at + 1], A[at + 2], A[at + 3]
  local fields, code, detail = load_commit(commit_key)
  if not fields then return { code, detail } end
  if fields.s then
    if fields.i ~= identity then return { 'conflict' } end
    return existing(commit_key, fields)
  end
  local down, conversation_id = down_key_of(commit_key), sub(ids, 49)
  local owner = try('GET', down)
  if type(owner) == 'table' then return { 'wrong_type', 'cmidown' } end
  if owner then
    if owner ~= conversation_id then return { 'conflict' } end
    return { 'corrupt', 'no commit of an owned client_message_id ' .. commit_key }
  end
  local last
  last, code, detail = last_sequence(conversation_key)
  if not last then return { code, detail } end

  local seq = call('INCR', prefix .. 'msgcseq:' .. conversation_key)
  local text, committed_at = string.format('%.0f', seq), A[at + 4]
  local record = A[at + 5] .. struct.pack('>I8', seq) .. A[at + 6]
  local key = prefix .. 'msgcommit:' .. commit_key
  if target == 'D' then
    call('HSET', key, 's', 'D', 'i', identity, 'q', text, 't', committed_at, 'k', ids, 'x', A[at + 7])
    call('ZADD', prefix .. 'msghistory:' .. conversation_key, text, record)
  else
    call('HSET', key, 's', 'R', 'i', identity, 'q', text, 't', committed_at, 'k', ids, 'x', A[at + 7], 'r', record)
  end
  call('SET', down, conversation_id, 'PXAT', string.format('%.0f', dedup_until(tonumber(committed_at))))
  recovery[#recovery + 1] = committed_at
  recovery[#recovery + 1] = commit_key
  if #recovery >= RECOVERY_ITEMS then
    call(unpack(recovery))
    recovery = { 'ZADD', prefix .. 'msgrecovery' }
  end
  return seq
end

local index_type = redis.call('TYPE', prefix .. 'msgrecovery').ok
local results = {}
for i = 1, A[3] do
  if index_type == 'zset' or index_type == 'none' then
    results[i] = reserve(4 + (i - 1) * FIELDS)
  else
    results[i] = { 'wrong_type', 'msgrecovery' }
  end
end
if #recovery > 2 then call(unpack(recovery)) end
return results
