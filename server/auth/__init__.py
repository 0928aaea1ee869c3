"""OAuth 2.1 without HTTP: who may do what, who says so, and how it is proved. Knows no transport and no web
framework."""
