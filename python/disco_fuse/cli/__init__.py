"""The command line ``disco-fuse``; a leaf, which nothing imports.

Results go to standard output, progress (on a terminal only) and errors to standard error. The exit
status is 0 when the work is done, 1 when it failed, 2 when the call was wrong.
"""
