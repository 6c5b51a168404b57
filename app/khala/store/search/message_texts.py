"""The texts of messages, as searches read them: SQL."""

from khala.domain.search_segments import MAX_MESSAGE_CHARACTERS
from khala.store.threads.reset_marks import IS_MESSAGE

IS_SEARCHED = f"messages.role <> 'system' AND messages.status IN ('final', 'error', 'canceled') AND {IS_MESSAGE}"
"""A condition on a row of `messages`: people may find it."""
TEXT = f"""(
    SELECT left(coalesce(string_agg(block->>'text', '' ORDER BY number), ''), {MAX_MESSAGE_CHARACTERS})
    FROM jsonb_array_elements(messages.content) WITH ORDINALITY AS content (block, number)
    WHERE block->>'type' = 'text'
)"""
"""The text of a row of `messages`, without calls of tools and notices."""
