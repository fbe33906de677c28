#!lua
-- truncate: make the entries of one user below a mailbox_seq invisible for good (MBX-04, MBX-40, MBX-55).
--
-- All proofs are verified before the first write. Days that have expired keep their proofs: natural expiry is promoted by
-- append_page and never moves user_trim_seq. A day that loses its last entry loses its proof too, since the trim covers it.
--
-- Keys (standalone Redis, undeclared): the four families of _retention.lua, each below the key prefix.
-- Arguments: ARGV[1] key prefix, ARGV[2] retention days, ARGV[3] format version, ARGV[4] user key,
--   ARGV[5] mailbox_seq in 16 hex, ARGV[6] its score bound: '(<log_offset>', '+inf' or '' (nothing of this incarnation).
-- Writes: buckets, day index, meta (user_trim_seq never goes back).
-- Returns 1, or {code, detail} with code `corrupt` or `wrong_type`.
local prefix, user_key, seq, below = ARGV[1], ARGV[4], ARGV[5], ARGV[6]
local retention_days, format_version = tonumber(ARGV[2]), ARGV[3]
local now_s = tonumber(redis.call('TIME')[1])
-- @include _retention

local state, code, detail = load_state(user_key)
if not state then return { code, detail .. ' of ' .. user_key } end
for day, proof in pairs(state.days) do
  if not is_expired(day) and not bucket_matches(bucket_of(user_key, day), day, proof.offset) then
    return { 'corrupt', 'bucket ' .. bucket_of(user_key, day) }
  end
end
if not identity_matches(user_key, state) then return { 'corrupt', 'identity index ' .. user_key } end
if state.trim and state.trim >= seq then return 1 end

local meta, index = prefix .. 'mbmeta:' .. user_key, prefix .. 'mbdays:' .. user_key
if below ~= '' then
  for day in pairs(state.days) do
    local bucket = bucket_of(user_key, day)
    if not is_expired(day) and call('ZREMRANGEBYSCORE', bucket, '-inf', below) > 0
      and call('EXISTS', bucket) == 0 then
      call('HDEL', meta, 'day:' .. day_text(day))
      call('ZREM', index, day)
      state.days[day] = nil
      state.count = state.count - 1
    end
  end
end
local lowest, highest
for day in pairs(state.days) do
  if not lowest or day < lowest then lowest = day end
  if not highest or day > highest then highest = day end
end
call('HSET', meta, 'retention_format_version', format_version, 'user_trim_seq', seq,
  'active_day_count', state.count)
if lowest then
  call('HSET', meta, 'min_day', lowest, 'max_day', highest)
else
  call('HDEL', meta, 'min_day', 'max_day')
end
return 1
