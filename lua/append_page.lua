#!lua
-- append_page: write a page of mailbox entries and the watermarks of their shards (MBX-30, MBX-31, MBX-34, WM-04).
--
-- The page consists of sections, one a shard. Each section is judged alone and is atomic: lease term, W by
-- compare-and-set, retention proofs and the day identity of every entry are checked before its first write, and nothing
-- that can fail follows a write. A refused section writes nothing and does not touch the others.
--
-- Keys (standalone Redis, undeclared): shardlease:<shard> (hash, read), wm:<shard> (hash: wm_layout, wm_epoch, wm_blob) and
--   the four families of _retention.lua, each below the key prefix.
-- Arguments: ARGV[1] key prefix; ARGV[2] cmsgpack of one flat array:
--   retention_days, format_version, W layout, number of sections, then per section
--     items that follow, shard, lease_term, W epoch, expected W blob ('' = none stored), new W blob, number of users, then
--     per user: user key, number of entries (at most 2,000), then per entry: UTC day, log_offset, mailbox_seq (16 hex), entry bytes.
--   Numbers that go into commands are text, so that Redis formats none of them.
-- Writes: bucket, proof, day index, identity index, W; per user also the promotion of days that have expired.
-- Returns one item a section: 1, or {code, detail, stored W blob or ''} with code one of
--   fenced      no live lease of this term, or W carries a newer epoch
--   w_mismatch  the stored W is not the expected one (the third item is what is stored)
--   corrupt     damaged or unprovable state, another retention format, a sequence on a second day
--   conflict    a replay with other bytes than the entry stored before
--   future_day  an entry dated more than one day ahead of Redis' clock
--   wrong_type  a key of another Redis type
local prefix = ARGV[1]
local A = cmsgpack.unpack(ARGV[2])
local retention_days, format_version, w_layout = A[1], A[2], A[3]
local now_s = tonumber(redis.call('TIME')[1])
-- @include _retention

local LEGAL_PRESENCE = { [0] = true, true, true, true, [6] = true } -- schemas/watermarks.py

local function w_is_legal(layout, epoch, blob)
  return (layout == w_layout and (#blob == 19 or #blob == 1216) or layout == 'packed-v1' and #blob == 1216)
    and tonumber(epoch) ~= nil and LEGAL_PRESENCE[byte(blob, 1)] ~= nil
end

-- Active days lie between the oldest living day and the one day that a fast clock may be ahead, so no user has more than
-- retention_days + 2 of them (MBX-23).

-- Judges lease and W of the section whose header starts at A[at]. Returns nil, or code, detail, stored blob.
local function judge_header(at, plan)
  local shard, term, epoch, expected, new = A[at], A[at + 1], A[at + 2], A[at + 3], A[at + 4]
  local held = try('HGET', prefix .. 'shardlease:' .. shard, 'term')
  if type(held) == 'table' then return 'wrong_type', 'shardlease', '' end
  if held ~= term then return 'fenced', held and ('lease term ' .. held) or 'no lease', '' end
  local key = prefix .. 'wm:' .. shard
  local raw = try('HGETALL', key)
  if raw.err then return 'wrong_type', 'wm', '' end
  local stored, stored_epoch = '', nil
  if #raw > 0 then
    local fields = {}
    for i = 1, #raw, 2 do fields[raw[i]] = raw[i + 1] end
    stored, stored_epoch = fields.wm_blob, fields.wm_epoch
    if #raw ~= 6 or not stored or not fields.wm_layout
      or not w_is_legal(fields.wm_layout, stored_epoch, stored) then
      return 'corrupt', 'wm', ''
    end
    if tonumber(stored_epoch) > tonumber(epoch) then return 'fenced', 'W epoch ' .. stored_epoch, stored end
  end
  if stored ~= expected then return 'w_mismatch', 'compare-and-set', stored end
  if stored ~= new or stored_epoch ~= epoch then
    plan[1] = { 'HSET', key, 'wm_layout', w_layout, 'wm_epoch', epoch, 'wm_blob', new }
  end
end

-- Plans the entries of one user and day, `entries` = positions in A. Returns nil, or code, detail.
local function judge_day(user_key, state, day, entries, plan, meta)
  local expiry, proof = expiry_of(day), state.days[day]
  local bucket, identity = bucket_of(user_key, day), prefix .. 'mbseqbucket:' .. user_key
  if proof then
    if not bucket_matches(bucket, day, proof.offset) then return 'corrupt', 'bucket ' .. bucket end
  elseif call('EXPIRETIME', bucket) ~= -2 then
    return 'corrupt', 'bucket without proof ' .. bucket
  end
  -- The proof's own sequence leads the lookup: it shows that the identity index is there (MBX-32).
  local lookup = { 'ZMSCORE', identity, proof and proof.seq or '' }
  for i = 1, #entries do lookup[i + 3] = A[entries[i] + 2] end
  local known = try(unpack(lookup))
  if known.err then return 'wrong_type', 'mbseqbucket' end
  if proof and known[1] ~= expiry then return 'corrupt', 'identity index ' .. user_key end
  local highest, highest_seq = proof and proof.offset or -1, proof and proof.seq or nil
  local into_bucket, into_identity = { 'ZADD', bucket }, { 'ZADD', identity }
  for i = 1, #entries do
    local at = entries[i]
    local score, seq, member = A[at + 1], A[at + 2], A[at + 3]
    local offset = tonumber(score)
    if known[i + 1] then
      if known[i + 1] ~= expiry then return 'corrupt', 'sequence ' .. seq .. ' on a second day' end
      if tonumber(call('ZSCORE', bucket, member) or '') ~= offset then return 'conflict', 'sequence ' .. seq end
    else
      if proof and offset <= proof.offset and call('ZCOUNT', bucket, score, score) > 0 then
        return 'corrupt', 'no identity of ' .. seq
      end
      local n = #into_bucket
      into_bucket[n + 1], into_bucket[n + 2] = score, member
      into_identity[n + 1], into_identity[n + 2] = expiry, seq
      if offset > highest then highest, highest_seq = offset, seq end
    end
  end
  if #into_bucket == 2 then return end
  plan[#plan + 1] = into_bucket
  plan[#plan + 1] = into_identity
  if not proof then
    plan[#plan + 1] = { 'EXPIREAT', bucket, expiry }
    plan[#plan + 1] = { 'ZADD', prefix .. 'mbdays:' .. user_key, expiry, day }
    if not state.max or day > state.max then
      plan[#plan + 1] = { 'EXPIREAT', identity, expiry }
    end
    state.count = state.count + 1
    if not state.min or day < state.min then state.min = day end
    if not state.max or day > state.max then state.max = day end
    meta.range = true
  end
  if highest_seq ~= (proof and proof.seq) then
    meta[#meta + 1] = 'day:' .. day_text(day)
    meta[#meta + 1] = highest_seq .. ':' .. expiry
  end
end

-- Plans the removal of expired proofs; their largest sequence is already part of the gap (MBX-42).
local function plan_promotion(user_key, state, plan, meta)
  local fields, members = { 'HDEL', prefix .. 'mbmeta:' .. user_key }, { 'ZREM', prefix .. 'mbdays:' .. user_key }
  for _, day in ipairs(state.expired) do
    fields[#fields + 1] = 'day:' .. day_text(day)
    members[#members + 1] = day
    state.days[day] = nil
    state.count = state.count - 1
  end
  state.min, state.max = nil, nil
  for day in pairs(state.days) do
    if not state.min or day < state.min then state.min = day end
    if not state.max or day > state.max then state.max = day end
  end
  if state.count == 0 then
    fields[#fields + 1] = 'min_day'
    fields[#fields + 1] = 'max_day'
  end
  plan[#plan + 1] = fields
  plan[#plan + 1] = members
  plan[#plan + 1] = { 'ZREMRANGEBYSCORE', prefix .. 'mbseqbucket:' .. user_key, '-inf', now_s }
  meta.range = true
end

-- Plans one user whose entries start at A[at] (`count` of them). Returns nil, or code, detail.
local function judge_user(user_key, at, count, plan)
  local state, code, detail = load_state(user_key)
  if not state then return code, detail .. ' of ' .. user_key end
  local meta = {}
  local gap = gap_after_promotion(state)
  if state.expired then
    if type(try('ZCARD', prefix .. 'mbseqbucket:' .. user_key)) == 'table' then return 'wrong_type', 'mbseqbucket' end
    plan_promotion(user_key, state, plan, meta)
  end
  local days, by_day, placed = {}, {}, {}
  for entry = at, at + (count - 1) * 4, 4 do
    local day, seq = A[entry], A[entry + 2]
    if state.trim and seq < state.trim then
      -- truncated for good (MBX-04): a replay brings nothing back
    elseif is_expired(day) then
      if not gap or seq > gap then gap = seq end
    elseif day > today + 1 then
      return 'future_day', 'sequence ' .. seq .. ' of ' .. user_key
    elseif placed[seq] and placed[seq] ~= day then
      return 'corrupt', 'sequence ' .. seq .. ' on a second day'
    else
      placed[seq] = day
      if not by_day[day] then
        by_day[day] = {}
        days[#days + 1] = day
      end
      by_day[day][#by_day[day] + 1] = entry
    end
  end
  for i = 1, #days do
    code, detail = judge_day(user_key, state, days[i], by_day[days[i]], plan, meta)
    if code then return code, detail end
  end
  if gap ~= state.gap then
    meta[#meta + 1] = 'expired_gap_boundary'
    meta[#meta + 1] = gap
  end
  if #meta == 0 and not meta.range then return end
  local write = { 'HSET', prefix .. 'mbmeta:' .. user_key, unpack(meta) }
  local n = #write
  if meta.range or state.fresh then
    write[n + 1], write[n + 2] = 'active_day_count', state.count
    n = n + 2
    if state.count > 0 then
      write[n + 1], write[n + 2], write[n + 3], write[n + 4] = 'min_day', state.min, 'max_day', state.max
      n = n + 4
    end
  end
  if state.fresh then
    write[n + 1], write[n + 2] = 'retention_format_version', format_version
  end
  plan[#plan + 1] = write
end

-- The usual case at a small and constant price, whatever the number of active days: entries of the newest day, which is
-- active, in order and above everything that day holds, and so above any trim. The same proofs of that day are checked, not
-- those of older days, which this write does not touch; any doubt is left to judge_user, which knows every rule. Plans the writes and returns true, or changes nothing and returns false.
-- `hot` is a plan for one entry without a table for each command: HOT_ITEMS items.
local HOT_ITEMS = 8
local function judge_hot(user_key, at, count, hot, plan)
  local day = A[at]
  local expiry, text = expiry_of(day), day_text(day)
  local meta, field = prefix .. 'mbmeta:' .. user_key, 'day:' .. text
  local found = try('HMGET', meta, 'retention_format_version', 'max_day', 'min_day', field)
  local proof = found[4]
  if found.err or found[1] ~= format_version or found[2] ~= text or not proof
    or #proof <= 17 or sub(proof, 18) ~= expiry or day > today + 1
    or is_expired(tonumber(found[3] or 0)) then
    return false
  end
  local proven = tonumber(sub(proof, 5, 16), 16)
  if not proven or tonumber(A[at + 1]) <= proven then return false end
  local index = try('ZRANGE', prefix .. 'mbdays:' .. user_key, -1, -1, 'WITHSCORES')
  if index.err or index[1] ~= text or index[2] ~= expiry then return false end
  local bucket, identity = prefix .. 'mailbox:' .. user_key .. ':' .. text, prefix .. 'mbseqbucket:' .. user_key
  if not bucket_matches(bucket, day, proven) then return false end
  if count == 1 then
    local seq = A[at + 2]
    local known = try('ZMSCORE', identity, sub(proof, 1, 16), seq)
    if known.err or known[1] ~= expiry or known[2] then return false end
    local n = #hot
    hot[n + 1], hot[n + 2], hot[n + 3], hot[n + 4] = bucket, A[at + 1], A[at + 3], meta
    hot[n + 5], hot[n + 6], hot[n + 7], hot[n + 8] = field, seq .. ':' .. expiry, identity, seq
    return true
  end
  local lookup, into_bucket, into_identity = { 'ZMSCORE', identity, sub(proof, 1, 16) }, { 'ZADD', bucket }, { 'ZADD', identity }
  for i = 1, count do
    local entry = at + (i - 1) * 4
    if A[entry] ~= day or (i > 1 and A[entry + 2] < A[entry - 2]) then return false end
    lookup[i + 3] = A[entry + 2]
    into_bucket[i * 2 + 1], into_bucket[i * 2 + 2] = A[entry + 1], A[entry + 3]
    into_identity[i * 2 + 1], into_identity[i * 2 + 2] = expiry, A[entry + 2]
  end
  local known = try(unpack(lookup))
  if known.err or known[1] ~= expiry then return false end
  for i = 2, count + 1 do
    if known[i] then return false end
  end
  local n = #plan
  plan[n + 1], plan[n + 2] = into_bucket, into_identity
  plan[n + 3] = { 'HSET', meta, field, A[at + count * 4 - 2] .. ':' .. expiry }
  return true
end

local function run_section(at)
  local plan, hot = {}, {}
  local code, detail, stored = judge_header(at, plan)
  if code then return { code, detail, stored } end
  local user = at + 6
  for _ = 1, A[at + 5] do
    local count = A[user + 1]
    if not judge_hot(A[user], user + 2, count, hot, plan) then
      code, detail = judge_user(A[user], user + 2, count, plan)
      if code then return { code, detail, '' } end
    end
    user = user + 2 + count * 4
  end
  for i = 1, #hot, HOT_ITEMS do
    call('ZADD', hot[i], hot[i + 1], hot[i + 2])
    call('HSET', hot[i + 3], hot[i + 4], hot[i + 5])
    call('ZADD', hot[i + 6], sub(hot[i + 5], 18), hot[i + 7])
  end
  for i = 1, #plan do call(unpack(plan[i])) end
  return 1
end

local results = {}
local at = 5
for section = 1, A[4] do
  results[section] = run_section(at + 1)
  at = at + 1 + A[at]
end
return results
