"""Record each call in the audit log: one JSON line with its principal, tool and result, in chains that reveal changes.

    recorder       a tools/call → an entry
    redaction      removes secrets from its arguments
    log            the files: appended to by several processes, rotated, repaired after a crash
    reader         reads the files again, to show and verify them, and a principal's own lines on the first page
    file_store     where the log is: in these files, or where another feature has rows
    chain_checker  the lines of a chain → what is wrong with them
    chain_verifier checks the rows

`server/state/audit` has what files and rows share: entries and chains.

What is detected: each line carries an HMAC over itself and the line before, and the file `head` names the newest line
under the same key, STATE/keys/audit. A process that can write the files but not read the key (a backup, a log shipper,
a command) can't change, remove, insert, reorder or cut off a line unseen. A reader of the key (root, and the server's
own user) can rewrite the whole log. The owner of an old copy of the folder can restore all of it, head included.
In a database the same holds for a process that can write its tables: see chain_verifier.
Against those, store the newest line that `toolgate audit verify` names in another place: a rewritten log lacks it.
"""
