#!lua
-- claim_layout: record how a deployment spreads keys over instances, or tell what was recorded before (REDIS-09, design §5).
--
-- Keys: KEYS[1] <prefix>layout:<role>, string. Arguments: ARGV[1] the layout, as text.
-- Writes: the layout, where none is recorded. Returns the recorded layout.
redis.call('SET', KEYS[1], ARGV[1], 'NX')
return redis.call('GET', KEYS[1])
