"""The pages that show people the mounted servers."""
