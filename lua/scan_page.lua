#!lua flags=no-writes
-- scan_page: answer a page of mailbox pulls, or count what waits (MBX-50, MBX-52, MBX-53, MBX-56, CUR-10).
--
-- The proofs of each incarnation are verified before its buckets are read and each bucket is compared with its proof
-- again after the read, so that a bucket that is gone is never taken for an empty one. Expired days are counted into the
-- gap boundary as a promotion would, without writing. A damaged mailbox fails its own scan only.
--
-- A scan that names a lane is answered only if W of that lane, as stored here, covers what it asks for: a Redis that came
-- back with less than it had must not look like an empty mailbox (TAKE-05).
--
-- Keys (standalone Redis, undeclared): the four families of _retention.lua and wm:<shard>, each below the key prefix.
-- Arguments: ARGV[1] key prefix; ARGV[2] cmsgpack of one flat array:
--   retention_days, format_version, number of scans, then per scan
--     entries a day to read at most (0: count only), soft byte limit, number of incarnations,
--     shard ('' = W is not asked for), lane, log offset that W must cover, then per incarnation
--     user key, lowest score, highest score (ZRANGEBYSCORE syntax; '' = only its boundaries are wanted).
-- Writes: nothing.
-- Returns one item a scan: {0, user_trim_seq or '', gap boundary or '', days} with days = one {cut, entries...} a day read,
--   cut = 1 when entries of that day may follow its last one; or, when counting, {0, trim, gap, number of entries};
--   or {code, detail} with code `corrupt`, `wrong_type` or `behind`.
local prefix = ARGV[1]
local A = cmsgpack.unpack(ARGV[2])
local retention_days, format_version = A[1], A[2]
local now_s = tonumber(redis.call('TIME')[1])
-- @include _retention

local GROUP_ENTRIES, GROUP_BYTES = 8, 8192 -- EVT-02: a cut leaves at least one whole group below it

-- Offset up to which a score bound reaches; nil for an open end.
local function offset_of(bound)
  return tonumber(sub(bound, 1, 1) == '(' and sub(bound, 2) or bound)
end

-- Shortens a read that is far above the byte limit; returns whether it did.
local function cut_bytes(entries, max_bytes)
  local total = 0
  for i = 1, #entries do
    total = total + #entries[i]
    if total > max_bytes + GROUP_BYTES and i > GROUP_ENTRIES then
      for j = #entries, i + 1, -1 do entries[j] = nil end
      return true
    end
  end
  return false
end

-- Reads (or counts) one incarnation into `days`. Returns count, or nil, code, detail.
local function read_days(user_key, state, low, high, limit, max_bytes, days)
  local order, count, above = {}, 0, offset_of(low)
  for day in pairs(state.days) do
    if not is_expired(day) then order[#order + 1] = day end
  end
  table.sort(order)
  for _, day in ipairs(order) do
    local bucket, proof = bucket_of(user_key, day), state.days[day]
    if not bucket_matches(bucket, day, proof.offset) then return nil, 'corrupt', 'bucket ' .. bucket end
    if low == '-inf' or proof.offset > above then
      if limit == 0 then
        count = count + call('ZCOUNT', bucket, low, high)
      else
        local entries = call('ZRANGEBYSCORE', bucket, low, high, 'LIMIT', 0, limit)
        local cut = #entries == limit
        cut = cut_bytes(entries, max_bytes) or cut
        if not bucket_matches(bucket, day, proof.offset) then return nil, 'corrupt', 'bucket ' .. bucket end
        if cut then
          -- Nothing above this point can be part of the answer, so later days are read up to here only.
          local last = entries[#entries]
          high = call('ZSCORE', bucket, last)
        end
        if #entries > 0 then
          table.insert(entries, 1, cut and 1 or 0)
          days[#days + 1] = entries
        end
      end
    end
  end
  if not identity_matches(user_key, state) then return nil, 'corrupt', 'identity index ' .. user_key end
  return count
end

local function later(a, b)
  if not a or (b and b > a) then return b end
  return a
end

local LANE_BYTES = 19 -- presence, then W, W_floor and W_recomputed of six bytes each (WM-20)
local blobs = {}

-- Whether W of a lane in the blob of a shard has reached `offset`; 19 bytes hold for all lanes (WM-23).
local function w_covers(shard, lane, offset)
  local blob = blobs[shard]
  if not blob then
    blob = call('HGET', prefix .. 'wm:' .. shard, 'wm_blob')
    if type(blob) ~= 'string' then return false end
    blobs[shard] = blob
  end
  local first = #blob == LANE_BYTES and 0 or lane * LANE_BYTES
  local presence = blob:byte(first + 1)
  if presence ~= 1 and presence ~= 3 then return false end -- the two that hold W
  local w = 0
  for i = first + 2, first + 7 do w = w * 256 + blob:byte(i) end
  return w >= offset
end

local function scan(at)
  local limit, max_bytes, incarnations = A[at], A[at + 1], A[at + 2]
  if A[at + 3] ~= '' and not w_covers(A[at + 3], A[at + 4], A[at + 5]) then
    return { 'behind', 'W of shard ' .. A[at + 3] }
  end
  local trim, gap, days, count = nil, nil, {}, 0
  for i = 0, incarnations - 1 do
    local user_key, low, high = A[at + 6 + i * 3], A[at + 7 + i * 3], A[at + 8 + i * 3]
    local state, code, detail = load_state(user_key)
    if not state then return { code, detail .. ' of ' .. user_key } end
    trim, gap = later(trim, state.trim), later(gap, gap_after_promotion(state))
    if low ~= '' then
      local found
      found, code, detail = read_days(user_key, state, low, high, limit, max_bytes, days)
      if not found then return { code, detail } end
      count = count + found
    end
  end
  return { 0, trim or '', gap or '', limit == 0 and count or days }
end

local results = {}
local at = 4
for i = 1, A[3] do
  results[i] = scan(at)
  at = at + 6 + A[at + 2] * 3
end
return results
