#!lua
-- hlc_window: claim the next window of milliseconds of one (region, writer) (HLC-01 to HLC-03).
--
-- Keys: KEYS[1] hlc:<region>:<writer>, string: the last millisecond of the last window claimed (the high-water mark).
-- Arguments: ARGV[1] now ms of the claimer, ARGV[2] window length ms.
-- Writes: the new mark, before the window is given out.
-- Returns {first ms, first ms after the window}: strictly above the old mark, whatever the clock says; or {code} `corrupt`.
local raw = redis.pcall('GET', KEYS[1])
local mark = type(raw) ~= 'table' and tonumber(raw or '-1')
if not mark or mark % 1 ~= 0 then return { 'corrupt' } end
local first = math.max(tonumber(ARGV[1]), mark + 1)
local beyond = first + tonumber(ARGV[2])
redis.call('SET', KEYS[1], string.format('%.0f', beyond - 1))
return { first, beyond }
