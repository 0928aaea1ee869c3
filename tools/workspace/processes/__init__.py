"""Start commands in processes of their own, follow their trees and end them.

Enter at `zygote.CommandRunner`; `supervisor` is the program that it starts, and loads the files beside it by path.
The rooms of the workspace and the sandbox import it; it imports no other room.
"""
