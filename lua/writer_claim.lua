#!lua
-- writer_claim: lease the lowest free writer id of a region (HLC-04).
--
-- Two holders of one id would still not mint one message_id twice, because HLC windows never overlap; the lease keeps ids few.
-- Keys (standalone Redis, undeclared): <prefix>writer:<region>:<id>, string: the owner, with the lease's TTL.
-- Arguments: ARGV[1] key prefix, ARGV[2] region, ARGV[3] owner, ARGV[4] TTL ms, ARGV[5] number of ids.
-- Writes: one lease.
-- Returns the id, or -1 when all are taken.
local base = ARGV[1] .. 'writer:' .. ARGV[2] .. ':'
for id = 0, tonumber(ARGV[5]) - 1 do
  local holder = redis.pcall('GET', base .. id)
  if holder == false or holder == ARGV[3] then
    redis.call('SET', base .. id, ARGV[3], 'PX', ARGV[4])
    return id
  end
end
return -1
