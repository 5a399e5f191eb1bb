"""Real federations: the same server object as under the virtual clock, driven by messages that Flower carries.

wire        what travels, and how it is looked at before it is opened
tickets     who holds which ticket, by a token that cannot be guessed
pace        deadlines learnt from a client's own history; how long to leave a failing one alone
clients     who is who, whatever node a client comes back as
door        which nodes are there, and who they are
course      the run itself: every change is a row, so that a journal makes it again
journal     rows and updates on disk, before they count
keeper      all that must not be forgotten: what is done is a row first
driver      the loop: pull, receive, hand out, push
speech      a ticket as a letter, an answer as an update
worker      a client's side of it; home: what it keeps on its own machine
flower      Flower's grid as the driver sees it; haste, node, warm: Flower without its long waits
server_app, client_app     what a Flower app names
settings, own, outcome     a run config as a plan; clients with examples of their own; what is left at the end
local, submit, processes, tls    a whole federation on this machine
"""
