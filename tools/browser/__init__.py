"""Pages as a real Chromium shows them. browser.py is what is asked, and all that is asked from outside this folder."""
