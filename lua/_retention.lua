-- Included by the mailbox scripts: loads and verifies the V4 retention proofs of one user (MBX-12..14, MBX-40..43).
--
-- A "user key" is `{<tenant hex>:<user>}:e<base epoch>`; four key families hang on it:
--   mailbox:<user key>:<day>   zset  score log_offset, member encoded entry; EXPIREAT the day's fixed expiry
--   mbmeta:<user key>          hash  retention_format_version, active_day_count, min_day, max_day,
--                                    day:<day> = "<max mailbox_seq, 16 hex>:<expiry s>" (the proof of an active day),
--                                    user_trim_seq, expired_gap_boundary (16 hex, absent until needed); never expires
--   mbdays:<user key>          zset  member day, score expiry s; never expires (a proof must outlive its bucket)
--   mbseqbucket:<user key>     zset  member mailbox_seq in 16 hex, score expiry s of its day; EXPIREAT the latest expiry
-- Needs the locals `prefix` (key prefix), `retention_days`, `format_version` (a string), `now_s` (Redis' clock).
-- Sequences are compared as hex text of one length: u63 does not fit a double.

local call, try = redis.call, redis.pcall
local sub, byte, tonumber = string.sub, string.byte, tonumber
local DAY_S = 86400
local today = math.floor(now_s / DAY_S)
local expiry_texts = {}

-- The fixed absolute expiry of a day bucket in seconds, as text (MBX-21).
local function expiry_of(day)
  local text = expiry_texts[day]
  if not text then
    text = string.format('%.0f', (day + retention_days + 1) * DAY_S)
    expiry_texts[day] = text
  end
  return text
end

local day_texts = {}
local function day_text(day)
  local text = day_texts[day]
  if not text then
    text = string.format('%.0f', day)
    day_texts[day] = text
  end
  return text
end

local function is_expired(day)
  return (day + retention_days + 1) * DAY_S <= now_s
end

local function bucket_of(user_key, day)
  return prefix .. 'mailbox:' .. user_key .. ':' .. day_text(day)
end

-- A mailbox without meta is empty only if nothing of it exists: never read lost proofs as an empty mailbox (MBX-33).
local function nothing_exists(user_key)
  local keys = { prefix .. 'mbdays:' .. user_key, prefix .. 'mbseqbucket:' .. user_key }
  for day = today - retention_days, today + 1 do
    keys[#keys + 1] = bucket_of(user_key, day)
  end
  return call('EXISTS', unpack(keys)) == 0
end

local META_FIELDS = {
  retention_format_version = true, user_trim_seq = true, expired_gap_boundary = true,
  min_day = true, max_day = true, active_day_count = true,
}

-- Returns {days = {day -> {seq, offset}}, count, min, max, trim, gap, expired = {days} or nil, fresh},
-- or nil, code, detail. Reads only. `days` holds every proof, expired ones included.
local function load_state(user_key)
  local raw = try('HGETALL', prefix .. 'mbmeta:' .. user_key)
  if raw.err then return nil, 'wrong_type', 'mbmeta' end
  if #raw == 0 then
    if not nothing_exists(user_key) then return nil, 'corrupt', 'mailbox without mbmeta' end
    return { days = {}, count = 0, fresh = true }
  end
  local index = try('ZRANGE', prefix .. 'mbdays:' .. user_key, 0, -1, 'WITHSCORES')
  if index.err then return nil, 'wrong_type', 'mbdays' end
  local meta, days, count, lowest, highest, expired = {}, {}, 0, nil, nil, nil
  for i = 1, #raw, 2 do
    local name, value = raw[i], raw[i + 1]
    if META_FIELDS[name] then
      meta[name] = value
    else
      local day = sub(name, 1, 4) == 'day:' and tonumber(sub(name, 5))
      local offset = #value > 17 and byte(value, 17) == 58 and tonumber(sub(value, 5, 16), 16)
      if not day or not offset or sub(value, 18) ~= expiry_of(day) then
        return nil, 'corrupt', 'proof ' .. name
      end
      days[day] = { seq = sub(value, 1, 16), offset = offset }
      count = count + 1
      if not lowest or day < lowest then lowest = day end
      if not highest or day > highest then highest = day end
      if is_expired(day) then
        expired = expired or {}
        expired[#expired + 1] = day
      end
    end
  end
  if meta.retention_format_version ~= format_version then return nil, 'corrupt', 'retention format' end
  if tonumber(meta.active_day_count) ~= count or tonumber(meta.min_day or '') ~= lowest
    or tonumber(meta.max_day or '') ~= highest or #index ~= count * 2 then
    return nil, 'corrupt', 'active days'
  end
  for i = 1, #index, 2 do
    local day = tonumber(index[i])
    if not days[day] or index[i + 1] ~= expiry_of(day) then return nil, 'corrupt', 'mbdays' end
  end
  local trim, gap = meta.user_trim_seq, meta.expired_gap_boundary
  if (trim and #trim ~= 16) or (gap and #gap ~= 16) then return nil, 'corrupt', 'boundary' end
  return {
    days = days, count = count, min = lowest, max = highest,
    trim = trim, gap = gap, expired = expired, fresh = false,
  }
end

-- The gap boundary once every expired day is promoted (MBX-40): 16 hex or nil. Reads only.
local function gap_after_promotion(state)
  local gap = state.gap
  for _, day in ipairs(state.expired or {}) do
    local seq = state.days[day].seq
    if not gap or seq > gap then gap = seq end
  end
  return gap
end

-- Whether the bucket of an active day is what its proof says: type, fixed expiry, largest offset. Reads only.
local function bucket_matches(bucket, day, offset)
  if call('EXPIRETIME', bucket) ~= (day + retention_days + 1) * DAY_S then return false end
  local top = try('ZREVRANGE', bucket, 0, 0, 'WITHSCORES')
  return not top.err and tonumber(top[2] or '') == offset
end

-- Whether the identity index lives at least as long as the newest active day. Reads only.
local function identity_matches(user_key, state)
  if not state.max or is_expired(state.max) then return true end
  return call('EXPIRETIME', prefix .. 'mbseqbucket:' .. user_key) >= (state.max + retention_days + 1) * DAY_S
end
