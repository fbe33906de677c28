#!lua
-- worker_beat: a worker says that it lives and what it holds, and learns the same of all others and what is ordered (design §5).
--
-- Keys (standalone Redis, undeclared), below the key prefix:
--   workers           hash worker name -> its own words (JSON); workersseen, zset of the names by Redis' clock in ms
--   slotorder:<slot>  string, the worker to which an operator moves the slot; expires
-- Arguments: ARGV[1] key prefix, ARGV[2] worker name ('' to look only), ARGV[3] its words ('' to leave), ARGV[4] how long a
--   worker is believed to live, ms, ARGV[5] number of slots.
-- Writes: the worker's own entry; entries that are too old are removed.
-- Returns {flat list of names and words, list of the slots' orders, '' for none}.
local prefix, name, words, lives_ms, slots = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local hash, seen = prefix .. 'workers', prefix .. 'workersseen'
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if name ~= '' then
  for _, old in ipairs(redis.call('ZRANGE', seen, '-inf', string.format('(%.0f', now_ms - lives_ms), 'BYSCORE')) do
    redis.call('HDEL', hash, old)
    redis.call('ZREM', seen, old)
  end
  if words == '' then
    redis.call('HDEL', hash, name)
    redis.call('ZREM', seen, name)
  else
    redis.call('HSET', hash, name, words)
    redis.call('ZADD', seen, now_ms, name)
  end
end
local living = {}
for _, known in ipairs(redis.call('ZRANGE', seen, string.format('%.0f', now_ms - lives_ms), '+inf', 'BYSCORE')) do
  living[#living + 1] = known
  living[#living + 1] = redis.call('HGET', hash, known) or ''
end
local orders = {}
for slot = 0, slots - 1 do orders[slot + 1] = redis.call('GET', prefix .. 'slotorder:' .. slot) or '' end
return { living, orders }
