"""The record of what was called, by whom and how it ended: one JSON line a call, in files that show what was changed.

    recording   a tools/call → an entry
    redaction   what of its arguments may be kept
    lines       an entry → a line that vouches for itself and for the one before
    log         the files: appended to by several processes at once, rotated, mended after a crash
    trail       the files read again: shown, and verified

Knows no transport. What tampering means here: each line carries an HMAC over itself and the line before, and the file
`head` says, under the same key, which line is the newest. So whoever can write the files but can't read the key in
STATE/keys/audit (a backup, a log shipper, a command that got a hand on the folder) can change, remove, insert, reorder
or cut off no line unseen. Whoever can read the key, which is root and the server's own user, can write the whole record
anew; and whoever kept an old copy of the folder can put all of it back, head included. Against those, note elsewhere
now and then what `toolgate audit verify` calls the newest line: a record that was made anew does not hold it.
"""
