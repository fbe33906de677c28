#!lua
-- forget_mailbox: throw away what the log can give back of one user's mailbox; keep what it cannot (LOG-12, MBX-40, MBX-55).
--
-- Entries, day index and identity index go. The explicit trim and the expired-gap boundary stay: a replay must neither bring
-- truncated entries back nor call a gap complete. Days that have expired are promoted first, since the log may have
-- forgotten them by now. Damage is no obstacle: what is unreadable goes too.
--
-- Keys (standalone Redis, undeclared): the four families of _retention.lua, each below the key prefix.
-- Arguments: ARGV[1] key prefix, ARGV[2] retention format version, ARGV[3] user key, ARGV[4..] the days whose buckets exist.
-- Writes: removes buckets, mbdays, mbseqbucket; mbmeta becomes the two boundaries, or goes where there is none.
-- Returns {user_trim_seq or '', expired_gap_boundary or ''}.
local prefix, version, user_key = ARGV[1], ARGV[2], ARGV[3]
local now_s = tonumber(redis.call('TIME')[1])
local meta = prefix .. 'mbmeta:' .. user_key

local function boundary(value) return value and #value == 16 and not value:find('[^0-9a-f]') and value or nil end

local raw = redis.pcall('HGETALL', meta)
local trim, gap
if not raw.err then
  for i = 1, #raw, 2 do
    local name, value = raw[i], raw[i + 1]
    if name == 'user_trim_seq' then trim = boundary(value) end
    local seq
    if name == 'expired_gap_boundary' then
      seq = boundary(value)
    elseif name:sub(1, 4) == 'day:' and #value > 17 and (tonumber(value:sub(18)) or now_s + 1) <= now_s then
      seq = boundary(value:sub(1, 16))
    end
    if seq and (not gap or seq > gap) then gap = seq end
  end
end
for i = 4, #ARGV do redis.call('DEL', prefix .. 'mailbox:' .. user_key .. ':' .. ARGV[i]) end
redis.call('DEL', prefix .. 'mbdays:' .. user_key, prefix .. 'mbseqbucket:' .. user_key, meta)
if trim or gap then
  redis.call('HSET', meta, 'retention_format_version', version, 'active_day_count', 0)
  if trim then redis.call('HSET', meta, 'user_trim_seq', trim) end
  if gap then redis.call('HSET', meta, 'expired_gap_boundary', gap) end
end
return { trim or '', gap or '' }
