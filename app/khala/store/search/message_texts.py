"""The texts of messages, as searches read them: SQL."""

import msgspec

from khala.domain.generation import FORMAT_REPAIR_NOTICE
from khala.domain.search_segments import MAX_MESSAGE_CHARACTERS
from khala.store.threads.reset_marks import IS_MESSAGE

IS_SEARCHED = f"""
    messages.role <> 'system' AND messages.status IN ('final', 'error', 'canceled')
    AND (messages.step IS NULL OR messages.role = 'assistant') AND {IS_MESSAGE}
"""
"""A condition on a row of `messages`: people may find it. Nobody has written the tasks of a plan's steps: they repeat
the plan, so searches find only their answers.
"""
BLOCKS = """(
    SELECT left(coalesce(string_agg(block->>'text', '' ORDER BY number), ''), {most})
    FROM jsonb_array_elements(messages.content) WITH ORDINALITY AS content (block, number)
    WHERE block->>'type' = 'text' AND {condition}
)"""
REPAIR = msgspec.json.encode([{"type": "notice", "code": FORMAT_REPAIR_NOTICE}]).decode()
IS_NOT_REPLACED = f"""NOT EXISTS (
    SELECT FROM jsonb_array_elements(messages.content) WITH ORDINALITY AS later (notice, place)
    WHERE later.place > number AND notice->>'type' = 'notice' AND notice->>'code' = '{FORMAT_REPAIR_NOTICE}'
      AND NOT EXISTS (
          SELECT FROM jsonb_array_elements(messages.content) WITH ORDINALITY AS between_them (call, at)
          WHERE at BETWEEN number AND later.place AND call->>'type' = 'tool')
)"""
TEXT = f"""CASE WHEN messages.content @> '{REPAIR}'
    THEN {BLOCKS.format(most=MAX_MESSAGE_CHARACTERS, condition=IS_NOT_REPLACED)}
    ELSE {BLOCKS.format(most=MAX_MESSAGE_CHARACTERS, condition="true")} END"""
"""The text of a row of `messages`, without calls of tools and notices, and without text that did not fit the requested
format, as `khala.domain.fold.without_replaced_text` leaves it out.
"""
