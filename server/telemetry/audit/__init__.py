"""The audit log: one JSON line a call with who called what and how it ended, in files that show any change.

    recorder       a tools/call → an entry
    redaction      takes secrets out of its arguments
    entry          an entry → a line, chained to the line before
    log            the files: appended to by several processes, rotated, repaired after a crash
    reader         the files read again: shown, verified, and each principal's own on the first page

What tampering means here: each line carries an HMAC over itself and the line before, and the file `head` says, under
the same key, which line is the newest. A writer of the files who can't read the key in STATE/keys/audit (a backup, a
log shipper, a command that reached the folder) can't change, remove, insert, reorder or cut off a line unseen. A
reader of the key, which is root and the server's own user, can write the whole log again; and the owner of an old
copy of the folder can put all of it back, head included. Against those, note elsewhere now and then what `toolgate
audit verify` calls the newest line: a log that was written again does not hold it.
"""
