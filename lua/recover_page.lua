#!lua
-- recover_page: commits that were left in the middle, oldest first; an R is continued to D on the way (COM-01, COM-03, COM-06).
--
-- Keys (standalone Redis, undeclared): the families of _commit.lua, each below the key prefix.
-- Arguments: ARGV[1] key prefix, ARGV[2] newest committed_at_ms wanted, ARGV[3] most items.
-- Writes: for an R its record and state; index entries whose commit is C are dropped.
-- Returns one item a commit: {commit key, state D or O, identity, seq, ids, committed_at_ms, record, outbox meta};
--   or {code, detail} for a damaged one, which stays in the index.
local prefix = ARGV[1]
-- @include _commit

local function recover(commit_key)
  local fields, code, detail = load_commit(commit_key)
  if not fields then return { code, detail } end
  if not fields.s then return { 'corrupt', 'no commit of ' .. commit_key } end
  if fields.s == 'C' then
    call('ZREM', prefix .. 'msgrecovery', commit_key)
    return nil
  end
  local record
  record, code, detail = record_of(commit_key, fields)
  if not record then return { code, detail } end
  return { commit_key, fields.s, fields.i, tonumber(fields.q), fields.k, tonumber(fields.t), record, fields.x }
end

local results = {}
local keys = call('ZRANGEBYSCORE', prefix .. 'msgrecovery', '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])
for _, commit_key in ipairs(keys) do
  results[#results + 1] = recover(commit_key)
end
return results
