-- Included by the commit scripts: the commit hash and the history of its conversation (COM-03, COM-07, COM-22, HIST-12).
--
-- A "commit key" is `{b<bucket>}:<tenant hex>:<sender>:<client_message_id hex>`, a "conversation key"
-- `{b<bucket>}:<tenant hex>:<conversation_id hex>`; the bucket has three digits. Key families below the key prefix:
--   msgcommit:<commit key>         hash, one-letter fields, no value above 64 bytes once committed (DP-09):
--       s state letter R, D, O or C   i identity digest   q conversation_seq   t committed_at_ms
--       k message_id, last_activity_id, trace_id, conversation_id (16 bytes each)
--       o outbox "<partition>:<offset>" (from O on)   x outbox meta (until C)   r record (only in R)
--       g history_gc_member (COM-12): only for messages that expire before the hot window ends, so absent by default
--   cmidown:<commit key without bucket>  string, the conversation_id that the client_message_id belongs to
--   msgcseq:<conversation key>     string, the conversation_seq last allocated
--   msghistory:<conversation key>  zset, score conversation_seq, member canonical MessageRecord: record and index in one
--   msgrecovery                    zset, score committed_at_ms, member commit key: every R, D and O
-- Needs the local `prefix`.

local call, try = redis.call, redis.pcall
local sub, tonumber = string.sub, tonumber
local BUCKET_CHARS = 7 -- '{b007}:'
local MAX_SEQ = 9007199254740991 -- exact in a double (REDIS-13)
local STATES = { R = true, D = true, O = true, C = true }

local function down_key_of(commit_key)
  return prefix .. 'cmidown:' .. sub(commit_key, BUCKET_CHARS + 1)
end

-- The conversation key of a commit, from its bucket and tenant and the raw conversation_id.
local function conversation_key_of(commit_key, conversation_id)
  local hex = string.gsub(conversation_id, '.', function(c) return string.format('%02x', string.byte(c)) end)
  return string.match(commit_key, '^{b%d+}:%x+:') .. hex
end

-- Fields of a commit hash as a table, {} when there is none, or nil, code, detail. Reads only.
local function load_commit(commit_key)
  local raw = try('HGETALL', prefix .. 'msgcommit:' .. commit_key)
  if raw.err then return nil, 'wrong_type', 'msgcommit' end
  local fields = {}
  for i = 1, #raw, 2 do fields[raw[i]] = raw[i + 1] end
  if #raw > 0 and not (STATES[fields.s or ''] and fields.i and fields.k and #fields.k == 64
    and tonumber(fields.q) and tonumber(fields.t)
    and (fields.s ~= 'R' or fields.r) and (fields.s == 'C' or fields.x)) then
    return nil, 'corrupt', 'msgcommit ' .. commit_key
  end
  return fields
end

-- The record stored under a sequence, false when there is none, or nil, code, detail. Reads only.
local function load_record(history_key, seq)
  local found = try('ZRANGEBYSCORE', history_key, seq, seq)
  if found.err then return nil, 'wrong_type', 'msghistory' end
  if #found > 1 then return nil, 'corrupt', 'two records of sequence ' .. seq end
  return found[1] or false
end

-- Continues an R: the record that the intent holds goes into the history (COM-06, COM-20); the same value again is a
-- no-op, another value under the sequence an error (HIST-12). Returns the record, or nil, code, detail.
local function put_record(commit_key, fields)
  local history = prefix .. 'msghistory:' .. conversation_key_of(commit_key, sub(fields.k, 49))
  local stored, code, detail = load_record(history, fields.q)
  if stored == nil then return nil, code, detail end
  if stored and stored ~= fields.r then return nil, 'corrupt', 'another record of sequence ' .. fields.q end
  if not stored then call('ZADD', history, fields.q, fields.r) end
  local key = prefix .. 'msgcommit:' .. commit_key
  call('HSET', key, 's', 'D')
  call('HDEL', key, 'r')
  fields.s = 'D'
  return fields.r
end

-- The record of a D or O, with an R continued first. Returns the record, or nil, code, detail.
local function record_of(commit_key, fields)
  if fields.s == 'R' then return put_record(commit_key, fields) end
  local history = prefix .. 'msghistory:' .. conversation_key_of(commit_key, sub(fields.k, 49))
  local record, code, detail = load_record(history, fields.q)
  if record == nil then return nil, code, detail end
  if not record then return nil, 'corrupt', 'no record of ' .. commit_key end
  return record
end
