#!lua
-- writer_renew: extend the lease of a writer id while it is still ours (HLC-04).
--
-- Keys: KEYS[1] <prefix>writer:<region>:<id>, string: the owner.
-- Arguments: ARGV[1] owner, ARGV[2] TTL ms.
-- Writes: the TTL.
-- Returns 1, or 0 when the lease ran out or belongs to somebody else (nothing is written).
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
