"""Operations on rows: retention, verification, export and import of accounts."""
