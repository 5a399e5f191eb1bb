"""Real federations: the same server object as under the virtual clock, driven by messages that Flower carries.

wire        what travels, and how it is looked at before it is opened
tickets     who holds which ticket, by a token that cannot be guessed
pace        deadlines learnt from a client's own history; how long to leave a failing one alone
clients     who is who, whatever node a client comes back as
course      the run itself: every change is a row, so that a journal makes it again
journal     rows and updates on disk, before they count
driver      the loop: pull, receive, hand out, push
flower      Flower's grid as the driver sees it
"""
