"""Keep what each person has switched off of the mounted servers, for themselves alone.

    switched_off   what one person has switched off, and the bounds of it
    book           all people's choices in memory, and their writes to the state
    rows           the table

Enter at `book.ChoiceBook`. `parts.views` asks it for each client; without a choice nothing differs. What a server lists
later is on, since pins decide whether it is served.
"""
