-- Recalls and delete-for-me (docs: pipeline, 5): laid on a row by its seq, never an edit of it.
--
-- ov:<conversation> is a hash target_seq8 -> overlay_seq8*, od:<conversation> a hash user8 target_seq8 ->
-- overlay_seq8*: every record laid there. wo:<shard> is a hash conversation16 overlay_seq8 -> user8 target8
-- (user 0: a recall) of those whose record is still pending; an overlay counts once one record of it is not.
-- What a caller hands over of an overlay is user8 target8.
--
-- KEYS and ARGV: none of its own. Reply: none; defines lay_overlay(conversation, overlay, seq),
-- lift_overlay(conversation, overlay, seq), overlay_counts(waiting, conversation, held) -> a seq8 or ''.
-- They can't fail.
-- Uses: compare
-- allow-file (..): a key's prefix before a fixed-width id, parts of fixed width

local NOBODY = '\0\0\0\0\0\0\0\0'

local function overlay_place(conversation, overlay)
  if sub(overlay, 1, 8) == NOBODY then return 'ov:' .. conversation, sub(overlay, 9) end
  return 'od:' .. conversation, overlay
end

local function lay_overlay(conversation, overlay, seq)
  local key, field = overlay_place(conversation, overlay)
  local held = redis.call('HGET', key, field) or ''
  for at = 1, #held, 8 do
    if sub(held, at, at + 7) == seq then return end
  end
  redis.call('HSET', key, field, held .. seq)
end

local function lift_overlay(conversation, overlay, seq)
  local key, field = overlay_place(conversation, overlay)
  local held, left = redis.call('HGET', key, field) or '', ''
  for at = 1, #held, 8 do
    local own = sub(held, at, at + 7)
    if own ~= seq then left = left .. own end
  end
  if left == '' then
    redis.call('HDEL', key, field)
  elseif left ~= held then
    redis.call('HSET', key, field, left)
  end
end

-- held = what stands in ov: or od: ('' or false: nothing); the record that counts, or ''
local function overlay_counts(waiting, conversation, held)
  if not held then return '' end
  for at = 1, #held, 8 do
    local seq = sub(held, at, at + 7)
    if redis.call('HEXISTS', waiting, conversation .. seq) == 0 then return seq end
  end
  return ''
end
